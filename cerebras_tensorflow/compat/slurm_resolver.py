"""CSSlurmClusterResolver: the tasks of a Slurm step. Scripts for the CS-1 build TF_CONFIG from it."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Sequence
from typing import Any

from cerebras_tensorflow.config import env
from cerebras_tensorflow.errors import SettingsError

PORT_BASE = 23111
"""First port that the original's tasks listened on."""
_SPLIT_OUTSIDE_BRACKETS = re.compile(r",(?![^\[]*\])")


class CSSlurmClusterResolver:
    """The cluster of this Slurm step. The first task is the chief, the others are workers. Outside Slurm: one chief.

    TensorFlow's own resolver cannot be used: it counts GPUs, and the tasks of a CS system have none.

    The resolver repeats Slurm's assignment of ranks to nodes: block by block, or round-robin if SLURM_DISTRIBUTION is
    cyclic. Slurm assigns the ranks of each component of a heterogeneous job separately. Under csrun, CSRUN_LAYOUT
    describes the components. Without it the resolver assumes one component; the result is the same if every component
    but the last has one task.

    Args:
        port_base: Port of the first task on each node. The other tasks of a node have the ports after it.

    Raises:
        SettingsError: If Slurm's variables do not cover all tasks (some Slurm releases list only one component of a
            heterogeneous job), or if they put this task on another node than the one that it runs on.
    """

    def __init__(self, port_base: int = PORT_BASE) -> None:
        nodes = os.environ.get("SLURM_STEP_NODELIST")
        self._rank = 0
        self._addresses = [f"localhost:{port_base}"]
        if nodes and "SLURM_PROCID" in os.environ:
            counts_text = os.environ.get("SLURM_STEP_TASKS_PER_NODE", "1")
            hosts, counts = host_names(nodes), task_counts(counts_text)
            self._rank = int(os.environ["SLURM_PROCID"])
            num_tasks = int(os.environ.get("SLURM_STEP_NUM_TASKS", sum(counts)))
            if len(hosts) != len(counts) or sum(counts) != num_tasks or self._rank >= num_tasks:
                raise SettingsError(
                    f"SLURM_STEP_NODELIST={nodes} with SLURM_STEP_TASKS_PER_NODE={counts_text} does not cover the "
                    f"step's {num_tasks} tasks (this is task {self._rank}). Some Slurm releases list only one "
                    "component of a heterogeneous job; set TF_CONFIG yourself there."
                )
            places = _places(counts)
            own = os.environ.get("SLURMD_NODENAME")
            if own in hosts and hosts[places[self._rank][0]] != own:
                raise SettingsError(
                    f"task {self._rank} runs on {own}, and {hosts[places[self._rank][0]]} is its node by "
                    f"SLURM_DISTRIBUTION={os.environ.get('SLURM_DISTRIBUTION', '')!r}: expected a block or cyclic "
                    "distribution of tasks. Start the step with --distribution=block or cyclic, or set TF_CONFIG."
                )
            self._addresses = [f"{hosts[node]}:{port_base + number}" for node, number in places]

    def cluster_spec(self) -> Any:
        """Return the tf.train.ClusterSpec."""
        import tensorflow as tf

        chief, *workers = self._addresses
        return tf.train.ClusterSpec({"chief": [chief], **({"worker": workers} if workers else {})})

    def get_task_info(self) -> tuple[str, int]:
        """Return this task's type and index, as TF_CONFIG names them."""
        return ("worker", self._rank - 1) if self._rank else ("chief", 0)


def _places(counts: Sequence[int]) -> list[tuple[int, int]]:
    """Return (node, number of the task on that node) of each rank, from SLURM_DISTRIBUTION and CSRUN_LAYOUT."""
    is_cyclic = os.environ.get("SLURM_DISTRIBUTION", "").split(":")[0].split(",")[0] == "cyclic"
    components = [range(len(counts))]
    if env.LAYOUT in os.environ:
        layout = json.loads(os.environ[env.LAYOUT])
        if layout["nodes"] == len(counts) > 1:  # else this is a step that the task itself started
            is_cyclic, first = layout["is_cyclic"], max(1, layout["single_task_nodes"])
            components = [range(first), range(first, len(counts))]
    if not is_cyclic:
        return [(node, number) for node, count in enumerate(counts) for number in range(count)]
    return [
        (node, number)
        for component in components
        for number in range(max(counts[node] for node in component))
        for node in component
        if number < counts[node]
    ]


def host_names(text: str) -> list[str]:
    """Return the hosts of a Slurm node list, such as node[01-03,7],other.

    Raises:
        ValueError: If the text is not a Slurm node list.
    """
    return [host for part in _SPLIT_OUTSIDE_BRACKETS.split(text) for host in _expanded(part)]


def _expanded(part: str) -> Iterator[str]:
    match = re.fullmatch(r"([^\[\]]*)(?:\[([\d,-]+)\](.*))?", part)
    if not part or match is None:
        raise ValueError(f"{part!r} is not a host of a Slurm node list; expected for example node[01-03,7]")
    prefix, numbers, rest = match.groups()
    if numbers is None:
        yield prefix
        return
    for item in numbers.split(","):
        first, _, last = item.partition("-")
        for number in range(int(first), int(last or first) + 1):
            for end in _expanded(rest) if rest else [""]:
                yield f"{prefix}{number:0{len(first)}d}{end}"


def task_counts(text: str) -> list[int]:
    """Return the number of tasks on each node, from Slurm's short form, such as 2(x3),1.

    Raises:
        ValueError: If the text is not in that form.
    """
    matches = [re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", item) for item in text.split(",")]
    if not all(matches):
        raise ValueError(f"{text!r} is not a list of task counts; expected for example 2(x3),1")
    return [int(match[1]) for match in matches if match for _ in range(int(match[2] or 1))]
