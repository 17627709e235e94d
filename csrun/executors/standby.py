"""The tasks of a launch on this machine, besides the chief: started, watched, told when the chief is done."""

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
    """Processes that stand by until the block ends. Final.

    Args:
        folder: The job's, in which tasks find each other.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._running: list[tuple[Task, subprocess.Popen[bytes]]] = []
        self._failure = ""

    def __enter__(self) -> Standby:
        return self

    def __exit__(self, *error: object) -> None:
        with suppress(OSError):  # without the file they are killed below
            (self._folder / worker.DONE_FILE).touch()
        for _, child in self._running:
            try:
                child.wait(END_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()

    def start(self, task: Task, environ: Mapping[str, str]) -> None:
        """Have a task stand by, in the wrapper that it has under Slurm too; it dies with this process."""
        child = subprocess.Popen(
            [sys.executable, "-m", "csrun.task", str(self._folder), "--"],
            stdin=subprocess.DEVNULL,
            env=dict(environ),
            preexec_fn=worker.die_with_parent(),
            start_new_session=True,
        )
        self._running.append((task, child))

    def failure(self) -> str:
        """Return what became of the first task that ended while the chief still needed it; empty when none has."""
        if not self._failure:
            for task, child in self._running:
                if child.poll() is not None:
                    end = read_end(task_file(self._folder, task.rank))
                    # A server that has died is told with its own log; a wrapper has none but the launch's.
                    said = end.message if end is not None else ""
                    self._failure = said or f"{ended_silently(task, end)}; the log is {self._folder / 'output.log'}"
                    break
        return self._failure
