"""The cluster of a Slurm step, from the variables that Slurm sets."""

from __future__ import annotations

import json
from typing import Any

import pytest

from cerebras_tensorflow.compat.slurm_resolver import CSSlurmClusterResolver, host_names, task_counts
from cerebras_tensorflow.errors import SettingsError

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


def layout(single_task_nodes: int, is_cyclic: bool) -> str:
    return json.dumps({"nodes": 4, "single_task_nodes": single_task_nodes, "is_cyclic": is_cyclic})


# The distribution of tasks that Slurm 22.05 gave for these steps.
CYCLIC = ["n0:1", "n1:1", "n2:1", "n3:1", "n2:2", "n3:2", "n2:3", "n3:3"]
BLOCKS = ["n0:1", "n1:1", "n2:1", "n2:2", "n2:3", "n3:1", "n3:2", "n3:3"]
FIRST_NODE_ALONE = ["n0:1", "n0:2", "n1:1", "n2:1", "n3:1", "n1:2", "n2:2", "n3:2"]


@pytest.mark.parametrize(
    "counts, variables, addresses",
    [
        ("1(x2),3(x2)", {"SLURM_DISTRIBUTION": "cyclic"}, CYCLIC),
        ("1(x2),3(x2)", {"SLURM_DISTRIBUTION": "cyclic:block"}, CYCLIC),
        ("1(x2),3(x2)", {"SLURM_DISTRIBUTION": "block:cyclic"}, BLOCKS),
        ("1(x2),3(x2)", {"CSRUN_LAYOUT": layout(2, True)}, CYCLIC),
        ("1(x2),3(x2)", {"CSRUN_LAYOUT": layout(2, False), "SLURM_DISTRIBUTION": "cyclic"}, BLOCKS),
        ("2(x4)", {"CSRUN_LAYOUT": layout(0, True), "SLURM_DISTRIBUTION": "cyclic"}, FIRST_NODE_ALONE),
    ],
)
def test_ranks_match_the_distribution_of_slurm(
    counts: str, variables: dict[str, str], addresses: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    step = {"SLURM_STEP_NODELIST": "n[0-3]", "SLURM_STEP_TASKS_PER_NODE": counts, "SLURM_STEP_NUM_TASKS": "8"}
    for rank, address in enumerate(addresses):
        own = {"SLURM_PROCID": str(rank), "SLURMD_NODENAME": address.partition(":")[0]}
        for name, value in {**step, **variables, **own}.items():
            monkeypatch.setenv(name, value)
        cluster = CSSlurmClusterResolver(port_base=1).cluster_spec().as_dict()
        assert [*cluster["chief"], *cluster["worker"]] == addresses


@pytest.mark.parametrize(
    "variables, problem",
    [
        ({"SLURM_PROCID": "3", "SLURM_STEP_NUM_TASKS": "5"}, "does not cover the step's 5 tasks"),
        ({"SLURM_PROCID": "3"}, "does not cover"),
        ({"SLURM_PROCID": "0", "SLURM_STEP_TASKS_PER_NODE": "2"}, "does not cover"),
        ({"SLURM_PROCID": "1", "SLURMD_NODENAME": "node2"}, "task 1 runs on node2, and node1 is its node"),
    ],
)
def test_a_step_that_the_variables_do_not_describe_is_refused(
    variables: dict[str, str], problem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {**STEP, **variables}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(SettingsError, match=problem):
        CSSlurmClusterResolver()


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
def test_malformed_slurm_variables_are_refused(function: Any, text: str) -> None:
    with pytest.raises(ValueError, match="expected for example"):
        function(text)
