"""CSSlurmClusterResolver: the tasks of a Slurm step, as scripts of the CS-1 made TF_CONFIG from them by hand."""

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
    """The cluster of this Slurm step: its first task is the chief, the others are workers. Outside Slurm: one chief.

    TensorFlow's own resolver looks for GPUs, of which the tasks of a CS system have none.

    Ranks lie on the nodes as Slurm deals them out: node after node, or in turn where SLURM_DISTRIBUTION says cyclic.
    Under csrun its CSRUN_LAYOUT says so, as the components of a heterogeneous job are dealt out one by one. Without
    that, such a job is taken as a single component, which gives the same where all but the last have one task.

    Args:
        port_base: Port of the first task on each node; the next ones follow.

    Raises:
        SettingsError: If the variables do not cover all tasks (some Slurm releases list one component of a
            heterogeneous job only), or another node than this has this task's rank by them.
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
                    f"step's {num_tasks} tasks, of which this is number {self._rank}. Of a heterogeneous job it may "
                    "list one component only; set TF_CONFIG yourself there."
                )
            places = _places(counts)
            own = os.environ.get("SLURMD_NODENAME")
            if own in hosts and hosts[places[self._rank][0]] != own:
                raise SettingsError(
                    f"task {self._rank} runs on {own}, and {hosts[places[self._rank][0]]} is its node by "
                    f"SLURM_DISTRIBUTION={os.environ.get('SLURM_DISTRIBUTION', '')!r}: expected tasks that are dealt "
                    "out in blocks or cyclically. Start it with --distribution=block or cyclic, or set TF_CONFIG."
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
    """Return (node, number of the task on it) of each rank, as the variables of the environment say."""
    is_cyclic = os.environ.get("SLURM_DISTRIBUTION", "").split(":")[0].split(",")[0] == "cyclic"
    components = [range(len(counts))]
    if env.LAYOUT in os.environ:
        layout = json.loads(os.environ[env.LAYOUT])
        if layout["nodes"] == len(counts) > 1:  # else a step that the task itself has started
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
        ValueError: If it is not one.
    """
    return [host for part in _SPLIT_OUTSIDE_BRACKETS.split(text) for host in _expanded(part)]


def _expanded(part: str) -> Iterator[str]:
    match = re.fullmatch(r"([^\[\]]*)(?:\[([\d,-]+)\](.*))?", part)
    if not part or match is None:
        raise ValueError(f"{part!r} is no host of a Slurm node list; expected for example node[01-03,7]")
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
    """Return the tasks of each node from Slurm's short form, such as 2(x3),1."""
    found = [re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", item) for item in text.split(",")]
    if not all(found):
        raise ValueError(f"{text!r} are no numbers of tasks; expected for example 2(x3),1")
    return [int(match[1]) for match in found if match for _ in range(int(match[2] or 1))]
