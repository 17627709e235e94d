"""The cluster of a Slurm step, from the variables that Slurm sets."""

from __future__ import annotations

import json
from typing import Any

import pytest

from cerebras_tensorflow.compat.slurm_resolver import CSSlurmClusterResolver, host_names, task_counts

STEP = {
    "SLURM_STEP_NODELIST": "node[1-2]",
    "SLURM_STEP_TASKS_PER_NODE": "2,1",
}


@pytest.mark.parametrize("rank, task", [("0", ("chief", 0)), ("1", ("worker", 0)), ("2", ("worker", 1))])
def test_the_first_task_is_the_chief(rank: str, task: tuple[str, int], monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {**STEP, "SLURM_PROCID": rank}.items():
        monkeypatch.setenv(name, value)
    resolver = CSSlurmClusterResolver(port_base=23111)
    assert resolver.cluster_spec().as_dict() == {"chief": ["node1:23111"], "worker": ["node1:23112", "node2:23111"]}
    assert resolver.get_task_info() == task


def test_outside_slurm_there_is_one_chief(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*STEP, "SLURM_PROCID", "SLURM_NTASKS"):
        monkeypatch.delenv(name, raising=False)
    resolver = CSSlurmClusterResolver()
    task_type, index = resolver.get_task_info()
    text = json.dumps({"cluster": resolver.cluster_spec().as_dict(), "task": {"type": task_type, "index": index}})
    assert json.loads(text) == {"cluster": {"chief": ["localhost:23111"]}, "task": {"type": "chief", "index": 0}}


@pytest.mark.parametrize(
    "text, hosts",
    [
        ("a", ["a"]),
        ("a,b", ["a", "b"]),
        ("n[08-10,12],x", ["n08", "n09", "n10", "n12", "x"]),
        ("r[1-2]n[3,5]", ["r1n3", "r1n5", "r2n3", "r2n5"]),
    ],
)
def test_node_lists_are_expanded(text: str, hosts: list[str]) -> None:
    assert host_names(text) == hosts


def test_task_counts_are_expanded() -> None:
    assert task_counts("2(x3),1") == [2, 2, 2, 1]


@pytest.mark.parametrize("function, text", [(host_names, "n[1"), (host_names, "a,,b"), (task_counts, "2x3")])
def test_what_slurm_never_writes_is_refused(function: Any, text: str) -> None:
    with pytest.raises(ValueError, match="expected for example"):
        function(text)
