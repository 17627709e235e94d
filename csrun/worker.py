"""An input worker as csrun sees it: a process that stands by, cheaply, until the chief asks for it.

Only a chief whose input can be computed elsewhere asks, so that other commands never pay for TensorFlow in every task.
`python -m csrun.worker FOLDER INDEX` is one of them on this machine; under Slurm it is part of the task's wrapper.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from cerebras_tensorflow.config import env
from csrun import interpreters

SERVER = "cerebras_tensorflow.runtime.input_worker_process"
REQUEST_FILE = "input-request"
DONE_FILE = "done"
POLL_S = 0.1
END_TIMEOUT_S = 5.0


def environment(folder: Path, count: int) -> dict[str, str]:
    """Return the variables by which the chief finds its input workers."""
    return {env.INPUT_FOLDER: str(folder), env.INPUT_WORKERS: str(count)}


def serve_when_asked(folder: Path, index: int) -> tuple[int, str]:
    """Stand by, serve from when the chief asks until it is done, and return the exit code and what went wrong."""
    # A signal to the whole job is for the chief; whether the input is still needed shows in the `done` file.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    while not (folder / REQUEST_FILE).exists():
        if (folder / DONE_FILE).exists():
            return 0, ""
        time.sleep(POLL_S)
    with (folder / f"input-worker-{index}.log").open("ab") as log:
        command = [sys.executable, "-m", SERVER, str(folder), str(index)]
        server = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, preexec_fn=die_with_parent()
        )
    try:
        while not (folder / DONE_FILE).exists():
            try:
                code = server.wait(POLL_S)
            except subprocess.TimeoutExpired:
                continue
            return 1, f"input worker {index} ended with code {code}; its log is {log.name}"
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
def started(folder: Path, count: int) -> Iterator[None]:
    """Have `count` input workers stand by on this machine; at the end they are told, then killed if need be."""
    with ExitStack() as stack:
        for index in range(count):
            command = [sys.executable, "-m", "csrun.worker", str(folder), str(index)]
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


def failure(folder: Path, count: int) -> str:
    """Return what the first input worker that failed says; empty when none did."""
    for index in range(count):
        path = _failure_file(folder, index)
        if path.exists():
            return path.read_text(encoding="utf-8")
    return ""


def main(argv: Sequence[str]) -> int:
    """Be one input worker of a launch on this machine."""
    folder, index = Path(argv[0]), int(argv[1])
    launcher = os.getppid()
    code, message = serve_when_asked(folder, index)
    if code:
        _failure_file(folder, index).write_text(message, encoding="utf-8")
        # The chief would wait for this worker's batches for ever: let the launcher stop it.
        if os.getppid() == launcher:
            os.kill(launcher, signal.SIGTERM)
    return code


def _end(child: subprocess.Popen[bytes]) -> None:
    try:
        child.wait(END_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()


def _failure_file(folder: Path, index: int) -> Path:
    return folder / f"input-worker-{index}.failed"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
