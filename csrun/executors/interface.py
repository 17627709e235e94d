"""The interface of an executor: it takes a plan and a queued job, runs them, and returns an exit code."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

from cerebras_tensorflow.system.jobs import LiveJob, UnrecordedJob
from csrun.plan import LaunchPlan
from csrun.process import Ended

RESUME = "If it has saved a checkpoint, the same command resumes from it"


@dataclass(frozen=True)
class Launch:
    """One launch on a simulated system.

    Attributes:
        plan: Tasks and roles.
        job: The record and the lock of the launch.
        wait_for_wafer: Returns once the job has the system; may be called once. Takes a function that prints what the
            job waits for.
        tell: Prints a line for the user, on standard error.
    """

    plan: LaunchPlan
    job: LiveJob | UnrecordedJob
    wait_for_wafer: Callable[[Callable[[str], None]], None]
    tell: Callable[[str], None]


class Executor(ABC):
    """A way to run a launch."""

    @abstractmethod
    def command_line(self, plan: LaunchPlan) -> tuple[str, ...]:
        """Return the words that are shown after `Launching:`."""

    @abstractmethod
    def started(self, plan: LaunchPlan) -> str:
        """Return what would be started; empty if srun would start the plan's tasks."""

    @abstractmethod
    def run(self, launch: Launch) -> Ended:
        """Wait for the system, run all tasks to their end, and return how the launch ended."""
