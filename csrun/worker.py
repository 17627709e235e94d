"""An input worker or weight server as csrun sees it: a process that stands by, cheaply, until the chief asks for it.

Only a chief whose input can be computed elsewhere, or whose weights shall be held elsewhere, asks; other commands never
pay for it. `python -m csrun.worker FOLDER ROLE INDEX` is one of them on this machine; under Slurm it is part of the
task's wrapper.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from cerebras_tensorflow.config import env
from csrun import interpreters
from csrun.plan import INPUT_WORKER, WEIGHT_SERVER


@dataclass(frozen=True)
class Kind:
    """A role that stands by.

    Attributes:
        name: For people and for the names of files.
        server: Module that does its work.
        request_file: What the chief leaves in the folder to ask for it.
        count: Variable that tells the chief how many there are.
    """

    name: str
    server: str
    request_file: str
    count: str


KINDS = {
    INPUT_WORKER: Kind(
        "input-worker", "cerebras_tensorflow.runtime.input_worker_process", "input-request", env.INPUT_WORKERS
    ),
    WEIGHT_SERVER: Kind(
        "weight-server", "cerebras_tensorflow.runtime.weight_server_process", "weight-request", env.WEIGHT_SERVERS
    ),
}
DONE_FILE = "done"
POLL_S = 0.1
END_TIMEOUT_S = 5.0


def environment(folder: Path, counts: Mapping[str, int]) -> dict[str, str]:
    """Return the variables by which the chief finds the tasks that stand by, so many of each role."""
    numbers = {kind.count: str(counts.get(role, 0)) for role, kind in KINDS.items()}
    return {env.INPUT_FOLDER: str(folder), **numbers}


def serve_when_asked(folder: Path, role: str, index: int) -> tuple[int, str]:
    """Stand by, serve from when the chief asks until it is done, and return the exit code and what went wrong."""
    kind = KINDS[role]
    # A signal to the whole job is for the chief; whether we are still needed shows in the `done` file.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    while not (folder / kind.request_file).exists():
        if (folder / DONE_FILE).exists():
            return 0, ""
        time.sleep(POLL_S)
    with (folder / f"{kind.name}-{index}.log").open("ab") as log:
        command = [sys.executable, "-m", kind.server, str(folder), str(index)]
        server = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, preexec_fn=die_with_parent()
        )
    try:
        while not (folder / DONE_FILE).exists():
            try:
                code = server.wait(POLL_S)
            except subprocess.TimeoutExpired:
                continue
            return 1, f"{kind.name.replace('-', ' ')} {index} ended with code {code}; its log is {log.name}"
    finally:
        server.kill()
        server.wait()
    return 0, ""


def die_with_parent() -> Callable[[], None]:
    """Return a function for a new child: from then on the kernel kills it when its parent dies."""
    libc = ctypes.CDLL(None)

    def prepare() -> None:
        libc.prctl(1, signal.SIGKILL)

    return prepare


@contextmanager
def started(folder: Path, counts: Mapping[str, int]) -> Iterator[None]:
    """Have so many of each role stand by on this machine; at the end they are told, then killed if need be."""
    with ExitStack() as stack:
        for role, index in _all(counts):
            command = [sys.executable, "-m", "csrun.worker", str(folder), role, str(index)]
            child = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                env=interpreters.for_own_modules(),
                preexec_fn=die_with_parent(),
                start_new_session=True,
            )
            stack.callback(_end, child)
        stack.callback((folder / DONE_FILE).touch)
        yield


def failure(folder: Path, counts: Mapping[str, int]) -> str:
    """Return what the first of them that failed says; empty when none did."""
    for role, index in _all(counts):
        path = _failure_file(folder, role, index)
        if path.exists():
            return path.read_text(encoding="utf-8")
    return ""


def main(argv: Sequence[str]) -> int:
    """Be one task of a launch on this machine that stands by."""
    folder, role, index = Path(argv[0]), argv[1], int(argv[2])
    launcher = os.getppid()
    code, message = serve_when_asked(folder, role, index)
    if code:
        _failure_file(folder, role, index).write_text(message, encoding="utf-8")
        # The chief would wait for a worker's batches for ever: let the launcher stop it.
        if os.getppid() == launcher:
            os.kill(launcher, signal.SIGTERM)
    return code


def _end(child: subprocess.Popen[bytes]) -> None:
    try:
        child.wait(END_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()


def _all(counts: Mapping[str, int]) -> Iterator[tuple[str, int]]:
    for role, count in counts.items():
        for index in range(count):
            yield role, index


def _failure_file(folder: Path, role: str, index: int) -> Path:
    return folder / f"{KINDS[role].name}-{index}.failed"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
