"""Decides whether the chief computes a dataset itself: a batch can take longer to hand over than to compute.

The chief cannot try both, because to begin it must compute all batches that workers have computed. So it compares the
time between two batches of the workers with the time that it would need alone. A worker tells what computing a batch
takes, and the chief sees how long its consumer uses one. Alone, a pipeline that computes ahead (prefetch, parallel
steps) takes the larger of the two; another one takes both. A run without workers would take just as long, so if the
chief changes, the rest is not slower than without workers.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

WARM_UP = 17
"""Batches that do not count: the workers start, and take new memory for each."""
WINDOW = 32
"""The chief compares after the warm-up and this many batches, and again after the same number, until LAST_BATCH.

It then skips the batches that workers have computed, by computing them; so it must not compare too late."""
LAST_BATCH = WARM_UP + 16 * WINDOW
# Workers must be slower by more than measurements scatter.
_LEAST_GAIN = 0.9
# A consumer that takes a batch this soon uses none: TensorFlow needs some of this time for a generator.
_SOON_S = 0.004
# A worker computes the next batch while it hands one over. If it still has to wait so much for its pipeline, computing
# limits it, not handing over, and the chief would need as long.
_LARGE_SHARE = 0.7


@dataclass(frozen=True)
class Work:
    """What a worker does with its time.

    Attributes:
        compute_s: CPU time that it needs to compute a batch [s].
        share: The share of its time in which it waits for its pipeline; in the rest it sends, or waits for the chief.
    """

    compute_s: float
    share: float


@dataclass(frozen=True)
class Verdict:
    """Why the chief computes the rest of a dataset.

    Attributes:
        batches: Number of batches that workers have computed.
        handed_over_s: Mean time from one batch of the workers to the next [s].
        compute_s: CPU time that one process needs to compute a batch [s].
    """

    batches: int
    handed_over_s: float
    compute_s: float


class Comparison:
    """Compares the time between two batches of the workers with the time that the chief would need alone.

    Args:
        is_ahead: Whether the dataset computes batches while its consumer uses others.
        clock: Returns the time [s].
    """

    def __init__(self, is_ahead: bool, clock: Callable[[], float] = time.perf_counter) -> None:
        self._is_ahead = is_ahead
        self._clock = clock
        self._batches = 0
        self._waited_s = 0.0
        self._asked = self._begin = clock()

    def asked(self) -> None:
        """Note that the consumer asks for a batch."""
        self._asked = self._clock()

    def got(self, work: Work | None) -> Verdict | None:
        """Count a batch that the consumer gets now. Return a verdict if computing the rest in the chief is faster.

        Args:
            work: What the worker of this batch does; None: unknown.
        """
        now = self._clock()
        self._batches += 1
        measured = self._batches - WARM_UP
        if measured <= 0:
            self._begin = now
            return None
        self._waited_s += now - self._asked
        if measured % WINDOW or self._batches > LAST_BATCH:
            return None
        mean_s, waited_s = (now - self._begin) / WINDOW, self._waited_s / WINDOW
        self._begin, self._waited_s = now, 0.0
        if work is None or work.share > _LARGE_SHARE:
            return None
        if self._alone_s(work.compute_s, mean_s - waited_s) > _LEAST_GAIN * mean_s:
            return None
        return Verdict(self._batches, mean_s, work.compute_s)

    def _alone_s(self, compute_s: float, used_s: float) -> float:
        """Return the time between two batches without workers."""
        used_s = used_s if used_s > _SOON_S else 0.0
        return max(compute_s, used_s) if self._is_ahead else compute_s + used_s


class WorkClock:
    """Measures what a worker does with its time."""

    def __init__(self) -> None:
        self._batches = 0
        self._computing_s = self._sending_s = 0.0
        self._begin = self._cpu_begin = 0.0

    def work(self) -> Work | None:
        """Count a batch. Return the means of all but the first batches; None for these."""
        self._batches += 1
        if self._batches == WARM_UP:
            self._begin, self._cpu_begin = time.perf_counter(), time.process_time()
            self._computing_s = self._sending_s = 0.0
        measured = self._batches - WARM_UP
        if measured <= 0:
            return None
        cpu_s = time.process_time() - self._cpu_begin - self._sending_s
        return Work(cpu_s / measured, self._computing_s / (time.perf_counter() - self._begin))

    @contextmanager
    def computing(self) -> Iterator[None]:
        """The worker waits for the pipeline in this block."""
        begin = time.perf_counter()
        yield
        self._computing_s += time.perf_counter() - begin

    @contextmanager
    def sending(self) -> Iterator[None]:
        """The worker makes a message in this block."""
        begin = time.thread_time()
        yield
        self._sending_s += time.thread_time() - begin
