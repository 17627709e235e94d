"""The plan as one heterogeneous Slurm job, by srun.

Facts about srun that shape this (measured on 22.05):
- A SIGTERM to srun kills the tasks at once, and one to all tasks ends the workers first, whose end then takes the chief
  down in the middle of its checkpoint. So the first signal becomes a file, `stop`, which the chief's wrapper watches.
- With --kill-on-bad-exit srun returns the code of the tasks that it tore down. So every wrapper leaves its task's own
  code in a file, and the first to fail by itself counts.
- Inside an allocation, six of its variables would be taken for the job's sizes.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

from csrun import interpreters, process
from csrun.executors.embedded import CANCEL_GRACE_S, RESUME
from csrun.executors.interface import Executor, Launch
from csrun.plan import LaunchPlan, layout, srun_options
from csrun.process import CommandError
from csrun.task import STOP_FILE, TaskEnd, task_file

ANSWER_TIMEOUT_S = 5.0
SIZES_OF_ANOTHER_STEP = (
    "SLURM_NTASKS",
    "SLURM_NPROCS",
    "SLURM_NTASKS_PER_NODE",
    "SLURM_TASKS_PER_NODE",
    "SLURM_CPUS_PER_TASK",
    "SLURM_DISTRIBUTION",
)


class Slurm(Executor):
    """Runs a plan on the nodes of a Slurm cluster."""

    def __init__(self, program: tuple[str, ...]) -> None:
        self._program = program

    def command_line(self, plan: LaunchPlan) -> tuple[str, ...]:
        """Return the srun line, as the original launcher shows it."""
        return (*srun_options(plan), *self._program)

    def run(self, launch: Launch) -> int:
        """Wait for the system, run srun with a wrapper around each task, and return the first failed task's code."""
        plan, job = launch.plan, launch.job
        launch.wait_for_wafer(lambda what: launch.tell(f"csrun: {what}"))
        wrapper = (sys.executable, "-m", "csrun.task", str(job.folder), "--", *self._resolved())
        code = process.run(
            (*srun_options(plan), *wrapper),
            _environment(plan, job.number),
            log=job.folder / "output.log",
            kill_after_s=lambda: CANCEL_GRACE_S if job.record.is_cancel_requested else None,
            stop=lambda _, number: _write_stop(job.folder, number),
            kill=lambda srun: os.kill(srun, signal.SIGTERM),
        )
        return _verdict(job.folder, plan, code)

    def _resolved(self) -> tuple[str, ...]:
        # In a container `python` is the container's; outside it is the one that runs this launcher.
        return self._program if self._program[0] == "singularity" else interpreters.resolved(self._program)


def answers() -> bool:
    """Return whether there is a Slurm cluster here that answers."""
    if shutil.which("srun") is None or shutil.which("sinfo") is None:
        return False
    try:
        done = subprocess.run(["sinfo", "-h"], capture_output=True, timeout=ANSWER_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        return False
    return done.returncode == 0 and bool(done.stdout.strip())


def _environment(plan: LaunchPlan, number: int) -> dict[str, str]:
    from cerebras_tensorflow.config import env

    environ = {
        name: value for name, value in interpreters.for_own_modules().items() if name not in SIZES_OF_ANOTHER_STEP
    }
    ours = {env.JOB_ID: str(number), env.LAYOUT: layout(plan), "PYTHONUNBUFFERED": "1"}
    return {**environ, **ours, **interpreters.environment(plan.command)}


def _write_stop(folder: Path, number: signal.Signals) -> None:
    (folder / STOP_FILE).write_text(str(int(number)), encoding="ascii")


def _verdict(folder: Path, plan: LaunchPlan, srun_code: int) -> int:
    """Return the code of the first task that failed by itself; srun's own when no task says anything.

    Raises:
        CommandError: If Slurm ended the job before the chief could end by itself.
    """
    records = {task.rank: _read_end(task_file(folder, task.rank)) for task in plan.tasks}
    found = [end for end in records.values() if end is not None]
    # A task that was killed has left no end, or nothing at all if its wrapper had not come to its first line yet.
    lost = [rank for rank, end in records.items() if end is None or end.ended_at is None]
    failed = sorted((end for end in found if end.exit_code), key=lambda end: end.ended_at or 0.0)
    chief_has_ended = any(end.rank == 0 and end.ended_at is not None for end in found)
    if found and lost and srun_code != 0 and not (folder / STOP_FILE).exists():
        names = ", ".join(_task_name(rank, records[rank]) for rank in lost[:3]) + (" ..." if len(lost) > 3 else "")
        raise CommandError(f"{names} went away without a word: killed, or the node was lost. {RESUME}", srun_code)
    if failed:
        return failed[0].exit_code
    if chief_has_ended or srun_code == 0:
        return 0
    raise CommandError(
        f"Slurm ended the job with code {srun_code} before the chief had ended: refused, cancelled or killed; srun's "
        f"message is above. {RESUME}",
        srun_code,
    )


def _task_name(rank: int, end: TaskEnd | None) -> str:
    return f"task {rank}" if end is None else f"task {rank} on {end.node}"


def _read_end(path: Path) -> TaskEnd | None:
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    return TaskEnd(**values)
