"""Runs a plan as one heterogeneous Slurm job, with srun.

Facts about srun that shape this (measured on 22.05):
- A SIGTERM to srun kills the tasks at once. A SIGTERM to all tasks ends the workers first, and then Slurm kills the
  chief while it writes its checkpoint. So the launcher writes the first signal to a file, `stop`, and the chief's
  wrapper reads it.
- With --kill-on-bad-exit srun returns the exit code of a task that srun killed. So every wrapper writes the exit code
  of its own task to a file, and the first task that failed by itself counts.
- Inside an allocation, srun would read the sizes of the job from six of the allocation's variables.
- A request that no node can meet waits in the queue forever, unless the site has set EnforcePartLimits. A request whose
  components ask for too many nodes only in sum waits forever even then. So `srun --test-only` checks the components
  and the sum first.
- A heterogeneous job ends when any of its nodes is lost, even with --no-kill. To survive that, a launch starts again.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from cerebras_tensorflow.config import env
from cerebras_tensorflow.system.jobs import LiveJob, UnrecordedJob
from cerebras_tensorflow.text import tell
from csrun import interpreters, process, relay
from csrun.executors.embedded import CANCEL_GRACE_S
from csrun.executors.interface import RESUME, Executor, Launch
from csrun.plan import CHIEF, LaunchPlan, layout, srun_options
from csrun.process import CommandError, Ended
from csrun.task import STOP_FILE, ended_silently, named, read_end, task_file

ANSWER_TIMEOUT_S = 5.0
TEST_TIMEOUT_S = 20.0
MAX_RESTARTS = 3
PENDING_GRACE_S = 3.0
NODE_FAILURE = re.compile(r"^srun: error: Node failure on (\S+)", re.M)
_WITHOUT_SLURM = "Install Slurm's client, or use --executor embedded"
SIZES_OF_ANOTHER_STEP = (
    "SLURM_NTASKS",
    "SLURM_NPROCS",
    "SLURM_NTASKS_PER_NODE",
    "SLURM_TASKS_PER_NODE",
    "SLURM_CPUS_PER_TASK",
    "SLURM_DISTRIBUTION",
)


class NodeLostError(CommandError):
    """A launch that ended because a node of its job was lost."""


class Slurm(Executor):
    """Runs a plan on the nodes of a Slurm cluster.

    Args:
        program: The command that each task executes, inside a container if the site has one.
        tolerates_node_failure: Whether a launch that has lost a node starts again, so that the run resumes from its
            latest checkpoint; at most MAX_RESTARTS times.
    """

    def __init__(self, program: tuple[str, ...], tolerates_node_failure: bool = False) -> None:
        self._program = program
        self._max_restarts = MAX_RESTARTS if tolerates_node_failure else 0

    def command_line(self, plan: LaunchPlan) -> tuple[str, ...]:
        """Return the srun line, as the original launcher shows it."""
        return (*_options(plan), *self._program)

    def started(self, plan: LaunchPlan) -> str:  # noqa: ARG002 (the interface's)
        """Return an empty text: srun starts the plan's tasks unchanged."""
        return ""

    def run(self, launch: Launch) -> Ended:
        """Wait for the system, run srun with a wrapper around each task, and return how the first failed task ended.

        Raises:
            CommandError: If the cluster cannot run the plan, or Slurm ended the job before the chief ended by itself.
        """
        environ = _environment(launch.plan, launch.job.number)
        _check_possible(launch.plan, environ)
        launch.wait_for_wafer(lambda what: launch.tell(f"csrun: {what}"))
        restarts = 0
        while True:
            # Use a fresh folder per restart, so that late writes of the last attempt are not read as results.
            folder = launch.job.folder / f"restart-{restarts}" if restarts else launch.job.folder
            folder.mkdir(exist_ok=True)
            try:
                return self._start(launch, folder, environ)
            except NodeLostError as exc:
                if restarts == self._max_restarts:
                    raise
                restarts += 1
                launch.tell(f"csrun: warning: {exc}. Starting again, {restarts} of at most {self._max_restarts} times")

    def _start(self, launch: Launch, folder: Path, environ: Mapping[str, str]) -> Ended:
        plan, job = launch.plan, launch.job
        log = job.folder / "output.log"
        start = log.stat().st_size if log.exists() else 0
        ended = process.run(
            (*_options(plan), sys.executable, "-m", "csrun.task", str(folder), "--", *self._resolved()),
            environ,
            log=log,
            kill_after_s=lambda: _grace_s(folder, job),
            stop=lambda srun, number: _stop(folder, srun, number),
            kill=lambda srun: os.kill(srun, signal.SIGTERM),
        )
        return _verdict(folder, plan, ended.code, _lost_nodes(log, start), log)

    def _resolved(self) -> tuple[str, ...]:
        # In a container `python` means the container's Python; outside it means the Python that runs this launcher.
        return self._program if self._program[0] == "singularity" else interpreters.resolved(self._program)


def _options(plan: LaunchPlan) -> tuple[str, ...]:
    """Return the srun command for the plan.

    Inside an allocation the launch is a step. On one node its tasks share the CPUs that the job has there, however few
    these are: `salloc -N 4` may give one CPU a node. The processes of several CSX are a second step, on all nodes.
    """
    words = srun_options(plan)
    if len(plan.components) > 1 or not env.read().is_under_slurm:
        return words
    place = words.index("--exclusive")
    return (*words[:place], "--overlap", "--overcommit", *words[place + 1 :])


def answers() -> bool:
    """Return whether a Slurm cluster answers here."""
    if shutil.which("srun") is None or shutil.which("sinfo") is None:
        return False
    try:
        done = subprocess.run(["sinfo", "-h"], capture_output=True, timeout=ANSWER_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        return False
    return done.returncode == 0 and bool(done.stdout.strip())


def _environment(plan: LaunchPlan, number: int) -> dict[str, str]:
    environ = {
        name: value for name, value in interpreters.for_own_modules().items() if name not in SIZES_OF_ANOTHER_STEP
    }
    ours = {env.JOB_ID: str(number), env.LAYOUT: layout(plan), "PYTHONUNBUFFERED": "1"}
    return {**environ, **ours, **relay.environment(), **interpreters.environment(plan.command)}


def _check_possible(plan: LaunchPlan, environ: Mapping[str, str]) -> None:
    """Check that the cluster can run the plan when all its nodes are free.

    Raises:
        CommandError: If not, with Slurm's reason.
    """
    if "SLURM_JOB_ID" in environ:
        return  # inside an allocation: the nodes are allocated already
    _, *options = srun_options(plan)
    program = shutil.which("srun", path=environ.get("PATH"))
    if program is None:
        raise CommandError(
            f"there is no srun on PATH, so nothing can run under Slurm. {_WITHOUT_SLURM}", process.NOT_FOUND
        )
    total = ("--exclusive", f"--nodes={plan.request.total_nodes}", f"--ntasks={plan.request.total_nodes}")
    for request in dict.fromkeys((tuple(options), total)):
        try:
            tested = subprocess.run(
                # The whole path: of a name, Python would run the next srun on PATH if the first cannot be executed.
                [program, "--test-only", *request, "true"],
                env=dict(environ),
                capture_output=True,
                text=True,
                errors="replace",
                timeout=TEST_TIMEOUT_S,
            )
        except OSError as exc:
            raise CommandError(
                f"srun cannot be executed: {exc.strerror}. {_WITHOUT_SLURM}", process.NOT_EXECUTABLE
            ) from exc
        except subprocess.TimeoutExpired:
            return  # the controller is busy; srun itself waits for it
        if tested.returncode != 0:
            reason = (tested.stderr.strip().splitlines() or ["no reason given"])[-1]
            code = tested.returncode if tested.returncode > 0 else 128 - tested.returncode
            raise CommandError(f"Slurm cannot run this launch on its nodes: {reason}", code)


def _lost_nodes(log: Path, start: int) -> list[str]:
    """Return the nodes that srun reports as failed, from an offset in the log on."""
    try:
        with log.open("rb") as file:
            file.seek(start)
            return sorted(set(NODE_FAILURE.findall(file.read().decode("utf-8", "replace"))))
    except OSError:  # there is no log, because the disk is full
        return []


def _grace_s(folder: Path, job: LiveJob | UnrecordedJob) -> float | None:
    """Return how long a launch may take to stop; None (no limit) unless it was cancelled or no chief has started."""
    if not task_file(folder, 0).exists():
        return PENDING_GRACE_S  # while srun waits for nodes it sometimes misses a signal: send another
    return CANCEL_GRACE_S if job.record.is_cancel_requested else None


def _stop(folder: Path, srun: int, number: signal.Signals) -> None:
    try:
        (folder / STOP_FILE).write_text(str(int(number)), encoding="ascii")
        is_stop_written = True
    except OSError as exc:
        tell(f"csrun: warning: the chief cannot be asked to save: {exc}; Slurm ends the job")
        is_stop_written = False
    if not is_stop_written or not task_file(folder, 0).exists():
        os.kill(srun, signal.SIGTERM)  # no chief runs that could save: the job is still in Slurm's queue


def _verdict(folder: Path, plan: LaunchPlan, srun_code: int, lost_nodes: Sequence[str], log: Path) -> Ended:
    """Return how the first task ended that failed by itself, from the tasks' files.

    Raises:
        NodeLostError: If a node of the job was lost before the chief could end by itself.
        CommandError: If Slurm ended the job before that for another reason.
    """
    records = {task.rank: read_end(task_file(folder, task.rank)) for task in plan.tasks}
    ends = [end for end in records.values() if end is not None]
    # A killed task has written no end. If its wrapper was killed at its start, it has written nothing at all.
    lost = [rank for rank, end in records.items() if end is None or end.ended_at is None]
    failed = sorted((end for end in ends if end.exit_code), key=lambda end: end.ended_at or 0.0)
    chief_has_ended = any(end.rank == 0 and end.ended_at is not None for end in ends)
    if not ends and (folder / STOP_FILE).exists():
        return Ended(128 + int((folder / STOP_FILE).read_text(encoding="ascii")))
    # After Slurm's SIGTERM the chief saves and ends by itself, but its work is not done.
    chief_is_done = any(end.rank == 0 and end.ended_at is not None and end.exit_code == 0 for end in ends)
    if lost_nodes and not chief_is_done and not (folder / STOP_FILE).exists():
        on_them = [(task, records[task.rank]) for task in plan.tasks]
        roles = [named(task, end.node) for task, end in on_them if end is not None and end.node in lost_nodes]
        # The node of a task is known only once its wrapper has started.
        what = ", ".join(lost_nodes) + (f", and with it {_few(roles)}" if roles else "")
        raise NodeLostError(f"Slurm has lost {what}; the log is {log}. {RESUME}", srun_code or 1)
    if ends and lost and (srun_code != 0 or not chief_has_ended) and not (folder / STOP_FILE).exists():
        gone = _few([ended_silently(plan.tasks[rank], records[rank]) for rank in lost])
        raise CommandError(f"{gone}; the log is {log}. {RESUME}", srun_code or 1)
    if failed and failed[0].role != CHIEF:
        raise CommandError(f"{failed[0].message}. {RESUME}", failed[0].exit_code)
    if failed:
        return Ended(failed[0].exit_code, failed[0].signal)
    if chief_has_ended:
        return Ended(0)
    raise CommandError(
        f"Slurm ended the job with code {srun_code} before the chief had ended: refused, cancelled or killed; srun's "
        f"message is above. {RESUME}",
        srun_code or 1,  # srun sometimes returns 0 when a node was lost
    )


def _few(names: Sequence[str]) -> str:
    """Return the first three names and the number of the others, so that an error on 100 tasks stays short."""
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
