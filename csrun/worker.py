"""An input worker or weight server as csrun sees it: a process that stands by, cheaply, until the chief asks for it.

A chief asks only if other processes can compute its input or are to hold its weights; others pay nothing for it. This
is part of the task's wrapper, task.py.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from cerebras_tensorflow.config import env
from csrun.plan import INPUT_WORKER, WEIGHT_SERVER


@dataclass(frozen=True)
class Kind:
    """A role that stands by.

    Attributes:
        name: For people and for the names of files.
        server: Module that does its work.
        request_file: What the chief leaves in the folder to ask for it.
        count: Variable that tells the chief how many there are.
        restarts: How often a server that ends before the run does is started again. A weight server's memory is lost
            with it, so it is not.
    """

    name: str
    server: str
    request_file: str
    count: str
    restarts: int = 0


KINDS = {
    INPUT_WORKER: Kind(
        "input-worker",
        "cerebras_tensorflow.runtime.input_workers.process",
        "input-request",
        env.INPUT_WORKERS,
        restarts=3,
    ),
    WEIGHT_SERVER: Kind(
        "weight-server", "cerebras_tensorflow.runtime.weight_store.server", "weight-request", env.WEIGHT_SERVERS
    ),
}
DONE_FILE = "done"
POLL_S = 0.1


def environment(folder: Path, counts: Mapping[str, int]) -> dict[str, str]:
    """Return the variables by which the chief finds the tasks that stand by, and their number by role."""
    numbers = {kind.count: str(counts.get(role, 0)) for role, kind in KINDS.items()}
    return {env.INPUT_FOLDER: str(folder), **numbers}


def serve_when_asked(folder: Path, role: str, index: int, name: str) -> tuple[int, str]:
    """Stand by, serve from when the chief asks until it is done, and return the exit code and what went wrong.

    Args:
        folder: The job's.
        role: What kind of task this is.
        index: Its number among those of its role.
        name: What people call it, with its host.
    """
    kind = KINDS[role]
    # A signal to the whole job is for the chief; whether we are still needed shows in the `done` file.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    while not (folder / kind.request_file).exists():
        if (folder / DONE_FILE).exists():
            return 0, ""
        time.sleep(POLL_S)
    log = folder / f"{kind.name}-{index}.log"
    code: int | None = None
    for _ in range(1 + kind.restarts):
        code = _serve(kind, folder, index, log)
        if code is None:
            return 0, ""
    how = f"was ended by {signal.Signals(-code).name}" if code is not None and code < 0 else f"ended with code {code}"
    times = f" for the {1 + kind.restarts}th time" if kind.restarts else ""
    return 1, f"{name} {how}{times}; its log is {log}"


def _serve(kind: Kind, folder: Path, index: int, log_path: Path) -> int | None:
    """Run one server until it ends by itself, or until the chief wants another one or none; None: none is needed."""
    replace_file = folder / f"{kind.name}-{index}.replace"
    with suppress(OSError):
        replace_file.unlink(missing_ok=True)
    with _log(log_path) as log:
        command = [sys.executable, "-m", kind.server, str(folder), str(index)]
        server = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, preexec_fn=die_with_parent()
        )
    try:
        while not (folder / DONE_FILE).exists():
            if replace_file.exists() and replace_file.read_text(encoding="ascii") == str(server.pid):
                server.kill()  # it hangs, or the connection to it is lost
            with suppress(subprocess.TimeoutExpired):
                return server.wait(POLL_S)
    finally:
        server.kill()
        server.wait()
    return None


def _log(path: Path) -> IO[bytes]:
    """Return a log to write to, or standard error where it cannot be made."""
    try:
        return path.open("ab")
    except OSError:
        return os.fdopen(os.dup(2), "wb")


def die_with_parent() -> Callable[[], None]:
    """Return a function for a new child: from then on the kernel kills it when its parent dies."""
    libc = ctypes.CDLL(None)

    def prepare() -> None:
        libc.prctl(1, signal.SIGKILL)

    return prepare
