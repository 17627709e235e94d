"""What a run needs of a system, wherever it is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Protocol


class RunningJob(Protocol):
    """A job that has a system."""

    @property
    def id(self) -> str:
        """wsjob-..."""

    @property
    def number(self) -> int:
        """Number of the launch."""


class System(ABC):
    """A simulated CS-2 as it was when it was found; `run` looks at it again."""

    @property
    @abstractmethod
    def name(self) -> str:
        """What people call it."""

    @property
    @abstractmethod
    def address(self) -> str:
        """host:port, as scripts pass it."""

    @property
    @abstractmethod
    def execution_mode(self) -> str:
        """`pipelined` or `weight_streaming`."""

    @abstractmethod
    def run(
        self, execution_mode: str, description: str = "", on_wait: Callable[[str], None] | None = None
    ) -> AbstractContextManager[RunningJob]:
        """Hold the system for one run: check its state, queue, adapt its mode, and give it back at the end.

        Args:
            execution_mode: Mode that the run needs, `pipelined` or `weight_streaming`.
            description: What runs, for `csctl get jobs` and for people who wait.
            on_wait: Called with one line of text whenever what the run waits for changes.

        Raises:
            ExecModeError: If an administrator has set the other mode; names the command that changes it.
            SystemStateError: If the system is in standby, or the job is cancelled while it waits.
        """
