"""The interface of a system to a run: the same for a system of this home and a served one."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Protocol


class RunningJob(Protocol):
    """A job that holds a system."""

    @property
    def id(self) -> str:
        """The job's id, `wsjob-...`."""

    @property
    def number(self) -> int:
        """Number of the launch."""


class System(ABC):
    """A simulated CS-2, with its state at the time of the look-up. `run` reads the state again."""

    @property
    @abstractmethod
    def name(self) -> str:
        """Name of the system."""

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
        self,
        execution_mode: str,
        description: str = "",
        on_wait: Callable[[str], None] | None = None,
        num_csx: int = 1,
    ) -> AbstractContextManager[RunningJob]:
        """Hold the system for one run: check its state, wait in the queue, adapt its mode, and free it at the end.

        Args:
            execution_mode: Mode that the run needs, `pipelined` or `weight_streaming`.
            description: What runs, for `csctl get jobs` and for users who wait.
            on_wait: Called with one line of text when the run starts to wait, when the reason changes, and every
                ten minutes.
            num_csx: Systems that the run takes, all at once: this one and others of its home, free ones first. If there
                are not so many, this one simulates the rest.

        Raises:
            ExecModeError: If an administrator has set the other mode; the text names the command that changes it.
            SystemStateError: If the system is in standby, or the job is cancelled while it waits.
        """
