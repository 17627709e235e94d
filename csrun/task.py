"""The wrapper around each task of a Slurm job: `python -m csrun.task FOLDER -- COMMAND...`.

It works out the task's role, runs the command if the task is the chief, turns the launcher's `stop` file into one
signal, and leaves a file with what became of the task. Input workers and weight servers serve when the chief asks.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from cerebras_tensorflow.config import env
from csrun import process, worker
from csrun.plan import CHIEF, LaunchPlan, Request, make_plan, task_environment

STOP_FILE = "stop"
POLL_S = 0.1


@dataclass(frozen=True)
class TaskEnd:
    """What became of a task; ended_at is None while it runs. Times are seconds since the epoch."""

    rank: int
    role: str
    node: str
    pid: int
    started_at: float
    ended_at: float | None = None
    exit_code: int = 0
    message: str = ""


def main(argv: Sequence[str]) -> int:
    """Run one task and return its exit code."""
    folder, separator, *command = argv
    assert separator == "--"
    plan = read_plan(os.environ[env.LAYOUT], command)
    rank = int(os.environ["SLURM_PROCID"])
    task = plan.tasks[rank]
    node = os.environ.get("SLURMD_NODENAME", socket.gethostname())
    start = TaskEnd(rank, task.role, node, os.getpid(), time.time())
    _write(Path(folder), start)
    code, message = 0, ""
    if task.role == CHIEF:
        try:
            code = _run_chief(Path(folder), plan)
        except process.CommandError as exc:
            code, message = exc.exit_code, str(exc)
            print(message, file=sys.stderr, flush=True)
    else:
        code, message = worker.serve_when_asked(Path(folder), task.role, task.role_index)
    _write(Path(folder), TaskEnd(**{**asdict(start), "ended_at": time.time(), "exit_code": code, "message": message}))
    if task.role == CHIEF:
        (Path(folder) / worker.DONE_FILE).touch()
        # The chief's code reaches the launcher by the file above; a bad one here would have srun kill the others.
        return 0
    return code


def read_plan(text: str, command: Sequence[str]) -> LaunchPlan:
    """Return the launcher's plan from the layout that it has put in the environment."""
    sizes = json.loads(text)
    names = ("tasks_per_node", "cpus_per_task", "single_task_nodes", "is_cyclic")
    return make_plan(Request(total_nodes=sizes["nodes"], **{name: sizes[name] for name in names}), command)


def task_file(folder: Path, rank: int) -> Path:
    """Return the path of the file that a task leaves behind."""
    return folder / f"task-{rank}.json"


def _run_chief(folder: Path, plan: LaunchPlan) -> int:
    environ = {
        **os.environ,
        **task_environment(plan, plan.tasks[0], int(os.environ[env.JOB_ID])),
        **worker.environment(folder, Counter(task.role for task in plan.tasks)),
    }
    ended = threading.Event()
    watcher = threading.Thread(target=_watch_for_stop, args=(folder / STOP_FILE, ended), daemon=True)
    watcher.start()
    try:
        return process.run(plan.command, environ)
    finally:
        ended.set()
        watcher.join()


def _watch_for_stop(path: Path, ended: threading.Event) -> None:
    """Send this process the signal that the launcher has written down, as if the launcher could reach it."""
    while not ended.wait(POLL_S):
        with suppress(FileNotFoundError, ValueError):
            number = int(path.read_text(encoding="ascii"))
            os.kill(os.getpid(), number)
            return


def _write(folder: Path, end: TaskEnd) -> None:
    path = task_file(folder, end.rank)
    draft = path.with_suffix(".tmp")
    draft.write_text(json.dumps(asdict(end)), encoding="utf-8")
    draft.replace(path)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
