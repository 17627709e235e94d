"""Runs a plan as processes of this machine, with the same roles, environment and records as under Slurm.

The chief is a child of the launcher and has the terminal. Every other task is a process that waits until the chief
needs it. A role gets at most LOCAL_TASKS processes (a setting of the site; by default at most one per CPU): each input
worker takes hundreds of megabytes for TensorFlow, and the tasks of 14 nodes would only compete for the same CPUs.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

from cerebras_tensorflow.config import env
from cerebras_tensorflow.system.jobs import LiveJob, UnrecordedJob
from csrun import interpreters, process, relay, worker
from csrun.executors.interface import RESUME, Executor, Launch
from csrun.executors.standby import Standby
from csrun.plan import LaunchPlan, Task, counts, folded, layout, task_environment
from csrun.task import TaskEnd, write_end

CANCEL_GRACE_S = 25.0
"""How long a cancelled run may take to save and stop. The whole cancellation then takes less than 30 s."""

WORKER_GRACE_S = 10.0
WORKER_FAILED = 1


class Embedded(Executor):
    """Runs a plan on this machine.

    Args:
        most_tasks: Most input workers, and most weight servers, that are started.
    """

    def __init__(self, most_tasks: int) -> None:
        self.most_tasks = most_tasks

    def command_line(self, plan: LaunchPlan) -> tuple[str, ...]:
        """Return the command itself."""
        return plan.command

    def started(self, plan: LaunchPlan) -> str:
        """Return how many processes of each role would be started here, and whether tasks are folded."""
        tasks = folded(plan, self.most_tasks)
        lines = [f"Started on this machine (embedded executor): {_processes(tasks)}"]
        return "\n".join([*lines, _what_is_folded(plan, tasks)] if len(tasks) < len(plan.tasks) else lines)

    def run(self, launch: Launch) -> process.Ended:
        """Wait for the system, run the tasks, and return how the chief ended.

        Raises:
            CommandError: If another task ended before the chief did, or the command cannot be started.
        """
        plan, job = launch.plan, launch.job
        # The published launcher's jobs have several components and always print both lines.
        launch.tell(f"srun: job {job.number} queued and waiting for resources")
        launch.wait_for_wafer(lambda what: launch.tell(f"csrun: {what}"))
        launch.tell(f"srun: job {job.number} has been allocated resources")
        chief, *others = tasks = folded(plan, self.most_tasks)
        if len(tasks) < len(plan.tasks):
            launch.tell(_what_is_folded(plan, tasks))
        start = TaskEnd(chief.rank, chief.role, os.uname().nodename, os.getpid(), time.time())
        write_end(job.folder, start)
        common = _common_environment(launch)
        with Standby(job.folder) as standby:
            for task in others:
                standby.start(task, {**common, **step_environment(plan, task)})
            try:
                ended = _run_chief(launch, tasks, common, standby)
            except process.CommandError as exc:
                write_end(job.folder, replace(start, ended_at=time.time(), exit_code=exc.exit_code, message=str(exc)))
                raise
            failure = standby.failure()
        write_end(job.folder, replace(start, ended_at=time.time(), exit_code=ended.code, signal=ended.signal))
        if failure:
            raise process.CommandError(f"{failure}. {RESUME}", WORKER_FAILED)
        return ended


def _common_environment(launch: Launch) -> dict[str, str]:
    """Return the variables that all tasks have."""
    return {
        **interpreters.for_own_modules(),
        env.JOB_ID: str(launch.job.number),
        env.LAYOUT: layout(launch.plan),
        **relay.environment(),
        "PYTHONUNBUFFERED": "1",
        **interpreters.environment(launch.plan.command),
    }


def _run_chief(launch: Launch, tasks: tuple[Task, ...], common: Mapping[str, str], standby: Standby) -> process.Ended:
    plan, job = launch.plan, launch.job
    environ = {
        **common,
        **task_environment(plan, tasks[0], job.number),
        **step_environment(plan, tasks[0]),
        **worker.environment(job.folder, counts(tasks)),
    }
    return process.run(
        interpreters.resolved(plan.command),
        environ,
        log=job.folder / "output.log",
        # The child holds the lock too: it keeps the wafer while it saves, even if the launcher was killed.
        keep_open=() if job.lock is None else (job.lock,),
        kill_after_s=lambda: _grace_s(job, standby),
        has_failed=lambda: bool(standby.failure()),
    )


def step_environment(plan: LaunchPlan, task: Task) -> dict[str, str]:
    """Return Slurm's variables that identify a task of the launch, as srun sets them.

    Variables that srun itself reads (SLURM_NTASKS, SLURM_JOB_ID and so on) are left out: the command may call srun.
    """
    loads = Counter(other.node for other in plan.tasks)
    return {
        "SLURM_PROCID": str(task.rank),
        "SLURM_NODEID": str(task.node),
        "SLURM_LOCALID": str(sum(other.node == task.node for other in plan.tasks[: task.rank])),
        "SLURM_STEP_NUM_TASKS": str(len(plan.tasks)),
        "SLURM_STEP_NUM_NODES": str(plan.request.total_nodes),
        "SLURM_STEP_TASKS_PER_NODE": _runs([loads[node] for node in sorted(loads)]),
    }


def _runs(numbers: list[int]) -> str:
    """Return numbers in Slurm's notation, which counts repeats.

    >>> _runs([1, 1, 8, 8, 8, 2])
    '1(x2),8(x3),2'
    """
    words: list[list[int]] = []
    for number in numbers:
        if words and words[-1][0] == number:
            words[-1][1] += 1
        else:
            words.append([number, 1])
    return ",".join(f"{number}(x{times})" if times > 1 else str(number) for number, times in words)


def _processes(tasks: tuple[Task, ...]) -> str:
    names = [f"{count} {role.replace('_', ' ')}(s)" for role, count in counts(tasks).items() if count]
    return ", ".join(["1 chief", *names])


def _what_is_folded(plan: LaunchPlan, tasks: tuple[Task, ...]) -> str:
    processes = _processes(tasks) if len(tasks) > 1 else "one process"
    nodes = plan.request.total_nodes
    where = f"{nodes} nodes" if nodes > 1 else "1 node"
    return (
        f"csrun: embedded executor: the plan's {len(plan.tasks)} tasks on {where} are folded into {processes} "
        "(--local-tasks sets how many of each role)"
    )


def _grace_s(job: LiveJob | UnrecordedJob, standby: Standby) -> float | None:
    """Return how long the chief may take to stop; no limit unless the job was cancelled or another task has ended."""
    if standby.failure():
        return WORKER_GRACE_S
    return CANCEL_GRACE_S if job.record.is_cancel_requested else None
