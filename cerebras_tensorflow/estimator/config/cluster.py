"""This process's task in the cluster of TF_CONFIG: its role, the other tasks and its session targets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

EVALUATOR = "evaluator"
_CHIEFS = ("chief", "master")
_GRPC = "grpc://"


@dataclass(frozen=True)
class ClusterTask:
    """One task of a cluster. An evaluator is outside the cluster, so its jobs are empty.

    Attributes:
        jobs: Job -> addresses of its tasks; empty without a cluster.
        kind: Job of this task: chief, master, worker, ps or evaluator.
        index: Index within the job.
        is_chief: Whether this task saves and logs.
        master: Session target of training; "" is this process.
        evaluation_master: Session target of evaluations.
        global_id: Index in the order chief, other jobs by name, parameter servers; None for an evaluator.
    """

    jobs: Mapping[str, Sequence[str]]
    kind: str
    index: int
    is_chief: bool
    master: str = ""
    evaluation_master: str = ""
    global_id: int | None = 0

    @property
    def num_ps(self) -> int:
        """Number of parameter servers."""
        return len(self.jobs.get("ps", ()))

    @property
    def num_workers(self) -> int:
        """Number of workers, including the chief; 1 without a cluster, 0 for an evaluator."""
        if self.kind == EVALUATOR:
            return 0
        return sum(len(self.jobs.get(name, ())) for name in (*_CHIEFS, "worker")) or 1

    @property
    def device_filters(self) -> list[str]:
        """The tasks that this one connects to. A trainer connects to the parameter servers, not to other trainers."""
        if self.kind == "worker":
            return ["/job:ps", f"/job:worker/task:{self.index}"]
        return {
            "chief": ["/job:ps", "/job:chief"],
            "master": ["/job:ps", "/job:master"],
            "ps": ["/job:ps", "/job:worker", "/job:chief", "/job:master"],
        }.get(self.kind, [])


def cluster_task(tf_config: Mapping[str, Any]) -> ClusterTask:
    """Return the task that TF_CONFIG describes, with the checks of tf.estimator.

    Raises:
        ValueError: If the cluster does not have exactly one chief, or lacks this task.
        TypeError: If a job is not a list of addresses.
    """
    import tensorflow as tf

    jobs = tf.train.ClusterSpec(tf_config.get("cluster", {})).as_dict()
    task = tf_config.get("task", {})
    evaluation_master = tf_config.get("eval_session_master", "")
    if not jobs:
        return _local_task(task, tf_config.get("session_master", ""), evaluation_master)
    chief = "master" if "master" in jobs else "chief"
    _check_cluster(jobs, task, chief)
    kind, index = task["type"], int(task["index"])
    if kind == EVALUATOR:
        return ClusterTask({}, kind, index, False, "", evaluation_master, None)
    is_alone = sum(len(hosts) for hosts in jobs.values()) == 1
    return ClusterTask(
        jobs,
        kind,
        index,
        kind == chief,
        tf_config.get("session_master", "" if is_alone else _GRPC + jobs[kind][index]),
        "",
        _global_id(jobs, kind, index, chief),
    )


def input_worker_task(tf_config: Mapping[str, Any]) -> ClusterTask:
    """Return the task of an input worker: its cluster lists input workers, and needs no chief."""
    jobs = tf_config.get("cluster", {})
    task = tf_config.get("task", {})
    kind, index = task.get("type", "worker"), int(task.get("index", 0))
    is_chief = index == 0 and (kind in _CHIEFS or not any(name in jobs for name in _CHIEFS))
    number = _global_id(jobs, kind, index, "chief") if kind != EVALUATOR else None
    return ClusterTask(jobs if kind != EVALUATOR else {}, kind, index, is_chief, global_id=number)


def _local_task(task: Mapping[str, Any], master: str, evaluation_master: str) -> ClusterTask:
    if task.get("type", "worker") != "worker":
        raise ValueError('If "cluster" is not set in TF_CONFIG, task type must be WORKER.')
    if int(task.get("index", 0)) != 0:
        raise ValueError('If "cluster" is not set in TF_CONFIG, task index must be 0.')
    return ClusterTask({}, "worker", 0, True, master, evaluation_master)


def _global_id(jobs: Mapping[str, Any], kind: str, index: int, chief: str) -> int:
    order = sorted(jobs, key=lambda name: (name != chief, name == "ps", name))
    before = order[: order.index(kind)] if kind in order else []
    return index + sum(len(jobs[name]) for name in before)


def _check_cluster(jobs: Mapping[str, Sequence[str]], task: Mapping[str, Any], chief: str) -> None:
    import tensorflow as tf

    if "master" in jobs and "chief" in jobs:
        raise ValueError("If `master` node exists in `cluster`, job `chief` is not supported.")
    if not jobs.get(chief):
        raise ValueError(f'If "cluster" is set in TF_CONFIG, it must have one "{chief}" node.')
    if len(jobs[chief]) > 1:
        raise ValueError(f'The "cluster" in TF_CONFIG must have only one "{chief}" node.')
    if not task.get("type"):
        raise ValueError('If "cluster" is set in TF_CONFIG, task type must be set.')
    if task.get("index") is None:
        raise ValueError('If "cluster" is set in TF_CONFIG, task index must be set.')
    kind, index = task["type"], int(task["index"])
    if index < 0:
        raise ValueError("Task index must be non-negative number.")
    if kind == EVALUATOR:
        if chief == "master":
            raise ValueError("If `master` node exists in `cluster`, task_type `evaluator` is not supported.")
        return
    note = "Note that these values may be coming from the TF_CONFIG environment variable."
    spec = tf.train.ClusterSpec(jobs)
    shown = f"in the cluster_spec:\n{spec}\n\n{note}"
    if kind not in jobs:
        raise ValueError(f"{kind} is not a valid task_type {shown}")
    if index >= len(spec.job_tasks(kind)):  # some tasks may have no address
        raise ValueError(f"{index} is not a valid task_id for task_type {kind} {shown}")
