"""Counts steps and samples of a run, their time, and the time that they waited for input."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass(frozen=True)
class Speed:
    """A measured rate."""

    steps_per_s: float
    samples_per_s: float


class Meter:
    """Counts the steps of one run. Pauses (checkpoints) are not training time.

    Args:
        waited_s: Returns the time that steps have waited for input so far [s].
        clock: Returns a time that never goes back [s].
    """

    def __init__(self, waited_s: Callable[[], float], clock: Callable[[], float] = time.perf_counter) -> None:
        self._waited_s = waited_s
        self._clock = clock
        self._started = 0.0
        self._paused_s = 0.0
        self._waited_before = 0.0
        self._mark = (0.0, 0, 0)
        self.batch_size = 0
        self.steps = 0
        self.samples = 0

    def start(self) -> None:
        """Start the clock, right before the first step."""
        self._started = self._clock()
        self._mark = (0.0, 0, 0)

    def count_step(self) -> None:
        """Count a step that has ended."""
        self.steps += 1
        self.samples += self.batch_size
        if self.steps == 1:
            self._waited_before = self._waited_s()  # the first batch waits for the pipeline to fill

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Leave the time of the block out of the training time."""
        begin = self._clock()
        try:
            yield
        finally:
            if self._started:
                self._paused_s += self._clock() - begin

    @property
    def elapsed_s(self) -> float:
        """Training time so far [s]."""
        return self._clock() - self._started - self._paused_s if self._started else 0.0

    @property
    def input_wait_share(self) -> float:
        """Share of the training time spent waiting for input, not counting the first batch."""
        return (self._waited_s() - self._waited_before) / self.elapsed_s if self.steps > 1 else 0.0

    def overall_speed(self) -> Speed:
        """Return the rate over the whole run."""
        return _speed(self.elapsed_s, self.steps, self.samples)

    def recent_speed(self) -> Speed:
        """Return the rate since the last call."""
        elapsed, steps, samples = self.elapsed_s, self.steps, self.samples
        before = self._mark
        self._mark = (elapsed, steps, samples)
        return _speed(elapsed - before[0], steps - before[1], samples - before[2])


def _speed(seconds: float, steps: int, samples: int) -> Speed:
    return Speed(steps / seconds, samples / seconds) if seconds > 0 else Speed(0.0, 0.0)
