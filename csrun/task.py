"""The wrapper of each task of a launch: `python -m csrun.task FOLDER -- COMMAND...`, under srun or on this machine.

It determines the task's role. For the chief it runs the command, and sends itself one signal when the launcher writes
the `stop` file. For an input worker or weight server it starts the server when the chief asks for it. At the end it
writes a file with the outcome. (The embedded executor's chief has no wrapper: the launcher does this work.)
"""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from cerebras_tensorflow import files
from cerebras_tensorflow.config import env
from cerebras_tensorflow.text import tell
from csrun import process, worker
from csrun.plan import CHIEF, LaunchPlan, Request, Task, counts, make_plan, task_environment

STOP_FILE = "stop"
POLL_S = 0.1
RECORD_BYTES = 2048


@dataclass(frozen=True)
class TaskEnd:
    """The outcome of a task.

    Attributes:
        rank, role, node, pid: Identify the task.
        started_at, ended_at: Seconds since the epoch; ended_at is None while it runs.
        exit_code: Exit code of its command.
        message: What went wrong, for the user.
        signal: Number of the signal that ended its command; 0 if none did.
    """

    rank: int
    role: str
    node: str
    pid: int
    started_at: float
    ended_at: float | None = None
    exit_code: int = 0
    message: str = ""
    signal: int = 0


def main(argv: Sequence[str]) -> int:
    """Run one task and return its exit code."""
    folder, separator, *command = argv
    assert separator == "--"
    plan = read_plan(os.environ[env.LAYOUT], command)
    rank = int(os.environ["SLURM_PROCID"])
    task = plan.tasks[rank]
    node = os.environ.get("SLURMD_NODENAME", socket.gethostname())
    start = TaskEnd(rank, task.role, node, os.getpid(), time.time())
    write_end(Path(folder), start)
    code, message, number = 0, "", 0
    if task.role == CHIEF:
        try:
            ended = _run_chief(Path(folder), plan)
            code, number = ended.code, ended.signal
        except process.CommandError as exc:
            code, message = exc.exit_code, str(exc)
            tell(f"csrun: error: {message}")
    else:
        os.environ.update(task_environment(plan, task, int(os.environ[env.JOB_ID])))
        code, message = worker.serve_when_asked(Path(folder), task.role, task.role_index, named(task, node))
    write_end(Path(folder), replace(start, ended_at=time.time(), exit_code=code, message=message, signal=number))
    if task.role == CHIEF:
        with suppress(OSError):  # without the file, the other tasks end with the launch
            (Path(folder) / worker.DONE_FILE).touch()
        # The launcher reads the chief's exit code from the file above. Nonzero here would make srun kill the others.
        return 0
    return code


def read_plan(text: str, command: Sequence[str]) -> LaunchPlan:
    """Return the launcher's plan, from the layout in the environment."""
    sizes = json.loads(text)
    names = ("tasks_per_node", "cpus_per_task", "single_task_nodes", "is_cyclic", "weight_servers")
    return make_plan(Request(total_nodes=sizes["nodes"], **{name: sizes[name] for name in names}), command)


def task_file(folder: Path, rank: int) -> Path:
    """Return the path of the file with a task's outcome."""
    return folder / f"task-{rank}.json"


def named(task: Task, node: str) -> str:
    """Return a task's name for users: its role, rank and host.

    >>> named(Task(5, 3, "input_worker", 3), "node3")
    'input worker 3 (task 5 on node3)'
    """
    role = "the chief" if task.role == CHIEF else f"{task.role.replace('_', ' ')} {task.role_index}"
    return f"{role} (task {task.rank} on {node})"


def ended_silently(task: Task, end: TaskEnd | None) -> str:
    """Return what is known about a task that wrote no end."""
    node = f"node {task.node} of the launch" if end is None else end.node
    return f"{named(task, node)} exited without a status: killed, or its host was lost"


def read_end(path: Path) -> TaskEnd | None:
    """Return a task's outcome; None if it has written none."""
    try:
        return TaskEnd(**json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):  # no file, or one that a full disk has truncated
        return None


def write_end(folder: Path, end: TaskEnd) -> None:
    """Write a task's outcome to the job's folder. If the disk fails, one line says so and the task continues."""
    path = task_file(folder, end.rank)
    # Padded, so that the end of a task fits into the disk blocks of its start, even if the disk is full by then.
    text = json.dumps(asdict(end)).ljust(RECORD_BYTES)
    try:
        files.write_text(path, text)
        return
    except OSError as exc:
        failure = exc
    with suppress(OSError):
        with path.open("r+", encoding="ascii") as file:
            file.write(text)
            file.truncate()
        return
    _tell_once(end.rank, f"the outcome of task {end.rank} cannot be recorded: {failure.strerror}")


_told: set[int] = set()


def _tell_once(rank: int, line: str) -> None:
    if rank not in _told:
        _told.add(rank)
        tell(f"csrun: warning: {line}")


def _run_chief(folder: Path, plan: LaunchPlan) -> process.Ended:
    environ = {
        **os.environ,
        **task_environment(plan, plan.tasks[0], int(os.environ[env.JOB_ID])),
        **worker.environment(folder, counts(plan.tasks)),
        # srun passes this task's standard error on to the launcher.
        env.PROGRESS: env.progress_through(2, os.environ.get(env.PROGRESS, "0")),
    }
    ended = threading.Event()
    watcher = threading.Thread(target=_watch_for_stop, args=(folder / STOP_FILE, ended), daemon=True)
    watcher.start()
    try:
        # A signal from Slurm and one from the launcher mean the same. Slurm kills the task if that is needed.
        return process.run(plan.command, environ, kill=lambda _: None)
    finally:
        ended.set()
        watcher.join()


def _watch_for_stop(path: Path, ended: threading.Event) -> None:
    """Send this process the signal in the `stop` file; the launcher, on another host, cannot send it itself."""
    while not ended.wait(POLL_S):
        with suppress(FileNotFoundError, ValueError):
            number = int(path.read_text(encoding="ascii"))
            os.kill(os.getpid(), number)
            return


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
