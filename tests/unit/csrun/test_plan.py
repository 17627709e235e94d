import json
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from csrun.executors import dry_run
from csrun.executors.embedded import Embedded
from csrun.executors.slurm import Slurm
from csrun.plan import (
    CHIEF,
    INPUT_WORKER,
    WEIGHT_SERVER,
    Request,
    counts,
    folded,
    layout,
    make_plan,
    srun_options,
    task_environment,
)

QUICKSTART = Request(14, 8, 16, single_task_nodes=2, is_cyclic=True, gres="cs:cerebras:1")


def rank_map(request: Request) -> str:
    plan = make_plan(request, ["python-ws", "run.py"])
    return "".join(f"{task.rank:3d} node {task.node:2d} {task.role} {task.role_index}\n" for task in plan.tasks)


def test_the_quickstart_plan_has_98_tasks() -> None:
    plan = make_plan(QUICKSTART, ["python-ws", "run.py"])
    assert len(plan.tasks) == 98
    assert json.loads(layout(plan))["tasks"] == 98


def test_rank_map_cyclic(golden) -> None:
    golden("csrun_ranks_cyclic.txt", rank_map(QUICKSTART))


def test_rank_map_block(golden) -> None:
    golden("csrun_ranks_block.txt", rank_map(Request(14, 8, 16, single_task_nodes=2)))


@pytest.mark.parametrize(
    ("name", "request_"),
    [
        ("quickstart", QUICKSTART),
        ("one_node", Request(1, 4, 2, gres="cs:1")),
        ("three_nodes", Request(3, 4, 2, is_cyclic=True, gres="cs:1")),
        ("help_example", Request(5, 4, 1, single_task_nodes=2)),
        ("slurm_chooses_cpus", Request(2, 6)),
    ],
)
def test_srun_line(golden, name: str, request_: Request) -> None:
    command = ("python-ws", "run.py", "--params", "a b.yaml")
    golden(f"csrun_srun_{name}.txt", dry_run.report(make_plan(request_, command), command, Slurm(command)) + "\n")


@pytest.mark.parametrize(("name", "request_"), [("folded", QUICKSTART), ("whole", Request(1, 4, 2))])
def test_a_dry_run_lists_the_processes_of_one_machine(golden, name: str, request_: Request) -> None:
    command = ("python-ws", "run.py", "--params", "a b.yaml")
    golden(f"csrun_dry_run_here_{name}.txt", dry_run.report(make_plan(request_, command), command, Embedded(8)) + "\n")


def test_single_task_nodes_must_leave_a_node() -> None:
    with pytest.raises(ValueError, match=r"''--single-task-nodes'' \(2\) must be less than the number of nodes \(2\)"):
        make_plan(Request(2, 1, single_task_nodes=2), ["x"])


def test_a_launch_on_one_node_may_have_every_role() -> None:
    plan = make_plan(Request(1, 5, weight_servers=2), ["x"])
    assert [task.role for task in plan.tasks] == [CHIEF, WEIGHT_SERVER, WEIGHT_SERVER, INPUT_WORKER, INPUT_WORKER]
    assert [task.role_index for task in plan.tasks] == [0, 0, 1, 0, 1]


def test_folding_limits_the_tasks_of_each_role_but_keeps_the_chief() -> None:
    plan = make_plan(Request(6, 8, single_task_nodes=4), ["x"])
    tasks = folded(plan, 2)
    assert tasks[0].role == CHIEF and counts(tasks) == {WEIGHT_SERVER: 2, INPUT_WORKER: 2}
    assert folded(plan, 0) == plan.tasks[:1]
    assert folded(plan, 100) == plan.tasks


@given(st.integers(1, 20), st.integers(1, 9), st.integers(0, 19), st.booleans())
def test_every_node_runs_its_tasks_and_one_task_is_the_chief(nodes: int, tasks: int, single: int, cyclic: bool) -> None:
    if single >= nodes:
        single = 0
    plan = make_plan(Request(nodes, tasks, None, single, cyclic), ["x"])
    loads = Counter(task.node for task in plan.tasks)
    assert [loads[node] for node in range(nodes)] == [1] * single + [tasks] * (nodes - single)
    assert [task.rank for task in plan.tasks] == list(range(len(plan.tasks)))
    assert [task.rank for task in plan.tasks if task.role == CHIEF] == [0]
    assert sum(task.role == WEIGHT_SERVER for task in plan.tasks) == max(single - 1, 0)
    for role in {task.role for task in plan.tasks}:
        indexes = [task.role_index for task in plan.tasks if task.role == role]
        assert indexes == list(range(len(indexes)))


def test_words_of_the_command_never_join_into_a_shell_line() -> None:
    command = ("python", "$(touch /tmp/x)", "; rm -rf /", "a\nb")
    plan = make_plan(Request(1, 1), command)
    assert plan.command == command
    assert not any("touch" in word for word in srun_options(plan))


def test_the_environment_of_a_task_has_its_rank_and_role() -> None:
    plan = make_plan(QUICKSTART, ["x"])
    environ = task_environment(plan, plan.tasks[97], 12)
    assert environ["CSRUN_JOB_ID"] == "12"
    assert environ["CSRUN_TASK"] == "97"
    assert environ["CSRUN_ROLE"] == "input_worker"
