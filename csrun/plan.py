"""Turns a request into a LaunchPlan: which task runs on which node, in which role. Pure functions.

| request | components (groups of nodes of one Slurm job) |
|---|---|
| 1 node | 1 node, T tasks, with the CS system; `--input-workers I --weight-servers W` make T = 1 + W + I |
| N nodes | 1 node with the CS system : N-1 nodes, T tasks each |
| N nodes, S of them single-task | S times 1 node with 1 task, the first with the CS system : N-S nodes, T tasks each |

Rank 0 is the chief. The other single-task nodes are weight servers (our choice: no public text says what the second
single-task node is for). On one node the next W tasks are weight servers. All other tasks are input workers.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from cerebras_tensorflow.config import env

CHIEF = "chief"
WEIGHT_SERVER = "weight_server"
INPUT_WORKER = "input_worker"


@dataclass(frozen=True)
class Request:
    """What a launch asks for.

    Attributes:
        total_nodes: Nodes, from 1.
        tasks_per_node: Tasks on each node that is not single-task.
        cpus_per_task: CPUs for each of these tasks; None: Slurm chooses.
        single_task_nodes: Nodes with one task, fewer than total_nodes.
        is_cyclic: Whether consecutive ranks lie on different nodes.
        gres: Slurm's name of the CS system; empty if it has none.
        weight_servers: Weight servers of a launch on one node; their ranks follow the chief's.
    """

    total_nodes: int
    tasks_per_node: int
    cpus_per_task: int | None = None
    single_task_nodes: int = 0
    is_cyclic: bool = False
    gres: str = ""
    weight_servers: int = 0


@dataclass(frozen=True)
class Component:
    """Nodes of a launch with the same number of tasks and the same resources."""

    nodes: int
    tasks_per_node: int
    cpus_per_task: int | None
    gres: str
    is_cyclic: bool


@dataclass(frozen=True)
class Task:
    """One process of a launch: its rank, the index of its node, its role and its place among the tasks of that role."""

    rank: int
    node: int
    role: str
    role_index: int


@dataclass(frozen=True)
class LaunchPlan:
    """Everything that an executor needs to know."""

    request: Request
    components: tuple[Component, ...]
    tasks: tuple[Task, ...]
    command: tuple[str, ...]


def make_plan(request: Request, command: Sequence[str]) -> LaunchPlan:
    """Return the plan of a launch.

    Raises:
        ValueError: If there are not more nodes than single-task nodes; the text is the original's.
    """
    if request.single_task_nodes and request.single_task_nodes >= request.total_nodes:
        raise ValueError(
            f"''--single-task-nodes'' ({request.single_task_nodes}) must be less than the number of nodes "
            f"({request.total_nodes})"
        )
    components = _components(request)
    nodes = _nodes_by_rank(components)
    first_worker = max(request.single_task_nodes, 1) + request.weight_servers
    tasks = []
    for rank, node in enumerate(nodes):
        if rank == 0:
            role, index = CHIEF, 0
        elif rank < first_worker:
            role, index = WEIGHT_SERVER, rank - 1
        else:
            role, index = INPUT_WORKER, rank - first_worker
        tasks.append(Task(rank, node, role, index))
    return LaunchPlan(request, components, tuple(tasks), tuple(command))


def _components(request: Request) -> tuple[Component, ...]:
    full = (request.tasks_per_node, request.cpus_per_task)
    if request.total_nodes == 1:
        return (Component(1, *full, request.gres, request.is_cyclic),)
    if request.single_task_nodes == 0:
        return (
            Component(1, *full, request.gres, request.is_cyclic),
            Component(request.total_nodes - 1, *full, "", request.is_cyclic),
        )
    single = [
        Component(1, 1, None, request.gres if index == 0 else "", False) for index in range(request.single_task_nodes)
    ]
    return (*single, Component(request.total_nodes - request.single_task_nodes, *full, "", request.is_cyclic))


def _nodes_by_rank(components: Sequence[Component]) -> list[int]:
    """Return the node of each rank. Ranks go through one component after the other."""
    nodes: list[int] = []
    first = 0
    for component in components:
        own = range(first, first + component.nodes)
        if component.is_cyclic:
            nodes += [node for _ in range(component.tasks_per_node) for node in own]
        else:
            nodes += [node for node in own for _ in range(component.tasks_per_node)]
        first += component.nodes
    return nodes


def layout(plan: LaunchPlan) -> str:
    """Return the plan's sizes as JSON, for the environment of its tasks."""
    request = plan.request
    return json.dumps(
        {
            "nodes": request.total_nodes,
            "tasks_per_node": request.tasks_per_node,
            "single_task_nodes": request.single_task_nodes,
            "cpus_per_task": request.cpus_per_task,
            "is_cyclic": request.is_cyclic,
            "weight_servers": request.weight_servers,
            "tasks": len(plan.tasks),
        }
    )


def folded(plan: LaunchPlan, most: int) -> tuple[Task, ...]:
    """Return the tasks of a plan that run on one machine: the chief, and at most `most` of each other role."""
    return tuple(task for task in plan.tasks if task.role == CHIEF or task.role_index < most)


def counts(tasks: Sequence[Task]) -> dict[str, int]:
    """Return the number of weight servers and of input workers."""
    return {role: sum(task.role == role for task in tasks) for role in (WEIGHT_SERVER, INPUT_WORKER)}


def task_environment(plan: LaunchPlan, task: Task, job_number: int) -> dict[str, str]:
    """Return the variables that tell a task what it is; config/env.py reads them."""
    return {
        env.JOB_ID: str(job_number),
        env.LAYOUT: layout(plan),
        env.ROLE: task.role,
        env.TASK: str(task.rank),
    }


def srun_options(plan: LaunchPlan) -> tuple[str, ...]:
    """Return the srun command for the plan, without the program.

    Each component states its number of tasks; otherwise srun, inside an allocation, would use the allocation's.
    """
    words = ["srun", "--unbuffered", "--kill-on-bad-exit"]
    for index, component in enumerate(plan.components):
        if index > 0:
            words.append(":")
        words += [
            "--exclusive",
            f"--nodes={component.nodes}",
            f"--ntasks={component.nodes * component.tasks_per_node}",
            f"--tasks-per-node={component.tasks_per_node}",
        ]
        if component.cpus_per_task is not None:
            words.append(f"--cpus-per-task={component.cpus_per_task}")
        if component.gres:
            words.append(f"--gres={component.gres}")
        if component.is_cyclic:
            words.append("--distribution=cyclic")
    return tuple(words)


def described(plan: LaunchPlan) -> str:
    """Return which ranks have which role on which nodes, one line for each role."""
    lines = []
    for role in (CHIEF, WEIGHT_SERVER, INPUT_WORKER):
        tasks = [task for task in plan.tasks if task.role == role]
        if tasks:
            nodes = sorted({task.node for task in tasks})
            lines.append(f"  {role:<14}{_span('rank', [task.rank for task in tasks]):<16}{_span('node', nodes)}")
    return "\n".join(lines)


def _span(word: str, numbers: Sequence[int]) -> str:
    if len(numbers) == 1:
        return f"{word} {numbers[0]}"
    return f"{word}s {numbers[0]}-{numbers[-1]}"
