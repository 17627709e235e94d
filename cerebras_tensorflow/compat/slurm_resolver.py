"""CSSlurmClusterResolver: the tasks of a Slurm step, as scripts of the CS-1 made TF_CONFIG from them by hand."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from typing import Any

PORT_BASE = 23111
"""First port that the original's tasks listened on."""
_SPLIT_OUTSIDE_BRACKETS = re.compile(r",(?![^\[]*\])")


class CSSlurmClusterResolver:
    """The cluster of this Slurm step: its first task is the chief, the others are workers. Outside Slurm: one chief.

    TensorFlow's own resolver looks for GPUs, of which the tasks of a CS system have none.

    Args:
        port_base: Port of the first task on each node; the next ones follow.
    """

    def __init__(self, port_base: int = PORT_BASE) -> None:
        nodes = os.environ.get("SLURM_STEP_NODELIST")
        self._rank = 0
        self._addresses = [f"localhost:{port_base}"]
        if nodes and "SLURM_PROCID" in os.environ:
            counts = task_counts(os.environ.get("SLURM_STEP_TASKS_PER_NODE", "1"))
            hosts = zip(host_names(nodes), counts, strict=True)
            self._addresses = [f"{host}:{port_base + number}" for host, count in hosts for number in range(count)]
            self._rank = int(os.environ["SLURM_PROCID"])

    def cluster_spec(self) -> Any:
        """Return the tf.train.ClusterSpec."""
        import tensorflow as tf

        chief, *workers = self._addresses
        return tf.train.ClusterSpec({"chief": [chief], **({"worker": workers} if workers else {})})

    def get_task_info(self) -> tuple[str, int]:
        """Return this task's type and index, as TF_CONFIG names them."""
        return ("worker", self._rank - 1) if self._rank else ("chief", 0)


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
