"""The plan as local processes.

One process, the chief, plays all roles: TensorFlow takes hundreds of megabytes for each process, and on one machine the
tasks of 14 nodes would only wait for each other. `--input-workers N` and `--weight-servers N` start that many of these
roles as processes of their own.
"""

from __future__ import annotations

import os

from cerebras_tensorflow.system.jobs import LiveJob
from csrun import interpreters, process, worker
from csrun.executors.interface import Executor, Launch
from csrun.plan import INPUT_WORKER, WEIGHT_SERVER, LaunchPlan, task_environment

CANCEL_GRACE_S = 25.0
"""How long a cancelled run may take to save and stop; with what comes around it, it stays below 30 s."""

WORKER_GRACE_S = 10.0
WORKER_FAILED = 1
RESUME = "The latest checkpoint is whole: the same command resumes from it"


class Embedded(Executor):
    """Runs a plan on this machine.

    Args:
        input_workers: Processes, besides the chief, that compute its input.
        weight_servers: Processes, besides the chief, that hold its weights.
    """

    def __init__(self, input_workers: int = 0, weight_servers: int = 0) -> None:
        self._counts = {INPUT_WORKER: input_workers, WEIGHT_SERVER: weight_servers}

    def command_line(self, plan: LaunchPlan) -> tuple[str, ...]:
        """Return the command itself."""
        return plan.command

    def run(self, launch: Launch) -> int:
        """Wait for the system, run the chief, and return its exit code."""
        plan, job = launch.plan, launch.job
        # The published launcher's jobs have several components and always print both lines.
        launch.tell(f"srun: job {job.number} queued and waiting for resources")
        launch.wait_for_wafer(lambda what: launch.tell(f"csrun: {what}"))
        launch.tell(f"srun: job {job.number} has been allocated resources")
        if len(plan.tasks) > 1:
            nodes = plan.request.total_nodes
            where = f"{nodes} nodes" if nodes > 1 else "1 node"
            names = [f"{count} {role.replace('_', ' ')}(s)" for role, count in self._counts.items() if count]
            processes = ", ".join(["1 chief", *names]) if names else "one process"
            launch.tell(
                f"csrun: embedded executor: the plan's {len(plan.tasks)} tasks on {where} are folded into {processes}"
            )
        environ = {
            **os.environ,
            **task_environment(plan, plan.tasks[0], job.number),
            **interpreters.environment(plan.command),
            **worker.environment(job.folder, self._counts),
            "PYTHONUNBUFFERED": "1",
        }
        with worker.started(job.folder, self._counts):
            code = process.run(
                interpreters.resolved(plan.command),
                environ,
                log=job.folder / "output.log",
                # The lock goes on to the child: the wafer stays taken while it saves, even if the launcher was killed.
                keep_open=() if job.lock is None else (job.lock,),
                kill_after_s=lambda: _grace_s(job),
            )
        failure = worker.failure(job.folder, self._counts)
        if failure:
            raise process.CommandError(f"{failure}. {RESUME}", WORKER_FAILED)
        return code


def _grace_s(job: LiveJob) -> float | None:
    """Return how long the chief may take to stop: no limit, unless it was cancelled or waits for input in vain."""
    if any(job.folder.glob("*.failed")):
        return WORKER_GRACE_S
    return CANCEL_GRACE_S if job.record.is_cancel_requested else None
