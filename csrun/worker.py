"""The wrapper's part for input workers and weight servers: waits for the chief's request, then runs the server.

A chief asks only if other processes can compute its input or are to hold its weights. Until then a task costs little:
it imports no TensorFlow. task.py, the wrapper, calls this.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from cerebras_tensorflow.config import env
from csrun.plan import INPUT_WORKER, WEIGHT_SERVER


@dataclass(frozen=True)
class Kind:
    """A role whose tasks wait for the chief.

    Attributes:
        name: For messages and for the names of files.
        server: Module that does its work.
        request_file: File that the chief creates in the folder to ask for the servers.
        count: Environment variable with the number of these tasks, for the chief.
        restarts: How many times within RESTART_PERIOD_S to start a server again if it ends before the run. 0 for weight
            servers: they lose the weights in their memory when they end.
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
RESTART_PERIOD_S = 1800.0


def environment(folder: Path, counts: Mapping[str, int]) -> dict[str, str]:
    """Return the variables that tell the chief the folder and the number of tasks of each role."""
    numbers = {kind.count: str(counts.get(role, 0)) for role, kind in KINDS.items()}
    return {env.INPUT_FOLDER: str(folder), **numbers}


def serve_when_asked(folder: Path, role: str, index: int, name: str) -> tuple[int, str]:
    """Wait for the chief's request, serve until the chief is done, and return the exit code and an error text.

    Args:
        folder: The job's folder.
        role: The task's role.
        index: The task's number within its role.
        name: The task's name for messages, with its host.
    """
    kind = KINDS[role]
    # A signal to the whole job is meant for the chief. This task ends when the `done` file appears.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    while not (folder / kind.request_file).exists():
        if (folder / DONE_FILE).exists():
            return 0, ""
        time.sleep(POLL_S)
    log = folder / f"{kind.name}-{index}.log"
    ends: deque[float] = deque(maxlen=1 + kind.restarts)
    while (code := _serve(kind, folder, index, log)) is not None:
        ends.append(time.monotonic())
        if len(ends) == ends.maxlen and ends[-1] - ends[0] <= RESTART_PERIOD_S:
            how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"
            times = f" for the {len(ends)}th time within {RESTART_PERIOD_S / 60:.0f} minutes" if kind.restarts else ""
            return 1, f"{name} {how}{times}; its log is {log}"
    return 0, ""


def _serve(kind: Kind, folder: Path, index: int, log_path: Path) -> int | None:
    """Run one server; return its exit code when it ends or the chief replaces it, None when the chief is done."""
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
                server.kill()  # the chief asks for a new server: this one hangs, or its connection is lost
            with suppress(subprocess.TimeoutExpired):
                return server.wait(POLL_S)
    finally:
        server.kill()
        server.wait()
    return None


def _log(path: Path) -> IO[bytes]:
    """Return the log, open for writing; standard error if the log cannot be opened."""
    try:
        return path.open("ab")
    except OSError:
        return os.fdopen(os.dup(2), "wb")


def die_with_parent() -> Callable[[], None]:
    """Return a function to run in a new child: it makes the kernel kill the child when its parent dies."""
    libc = ctypes.CDLL(None)

    def prepare() -> None:
        libc.prctl(1, signal.SIGKILL)

    return prepare
