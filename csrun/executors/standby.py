"""Starts and watches the tasks of a launch on this machine except the chief, and ends them when the chief is done."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from csrun import worker
from csrun.plan import Task
from csrun.task import ended_silently, read_end, task_file

END_TIMEOUT_S = 5.0


class Standby:
    """Processes that wait for the chief until the `with` block ends. Final.

    Args:
        folder: The job's folder, in which tasks find each other.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._running: list[tuple[Task, subprocess.Popen[bytes]]] = []
        self._failure = ""

    def __enter__(self) -> Standby:
        return self

    def __exit__(self, *error: object) -> None:
        with suppress(OSError):  # without this file the loop below kills them
            (self._folder / worker.DONE_FILE).touch()
        for _, child in self._running:
            try:
                child.wait(END_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()

    def start(self, task: Task, environ: Mapping[str, str]) -> None:
        """Start a task in the same wrapper as under Slurm. The kernel kills it when this process dies."""
        child = subprocess.Popen(
            [sys.executable, "-m", "csrun.task", str(self._folder), "--"],
            stdin=subprocess.DEVNULL,
            env=dict(environ),
            preexec_fn=worker.die_with_parent(),
            start_new_session=True,
        )
        self._running.append((task, child))

    def failure(self) -> str:
        """Return how the first task ended that ended before the chief; empty if none has."""
        if not self._failure:
            for task, child in self._running:
                if child.poll() is not None:
                    end = read_end(task_file(self._folder, task.rank))
                    # The message of a dead server names the server's own log; a dead wrapper has only the launch's log.
                    said = end.message if end is not None else ""
                    self._failure = said or f"{ended_silently(task, end)}; the log is {self._folder / 'output.log'}"
                    break
        return self._failure
