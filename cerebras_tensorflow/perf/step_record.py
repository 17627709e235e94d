"""The losses and the speed of a run, kept in bounded memory."""

from __future__ import annotations

_MOST = 2000


class StepRecord:
    """Records steps. After 2000 of them it keeps every second one, and so on.

    Attributes:
        steps: Global steps.
        losses: The loss of each.
        samples_per_s: The rate up to each, since the one before.
    """

    def __init__(self) -> None:
        self.steps: list[int] = []
        self.losses: list[float] = []
        self.samples_per_s: list[float] = []
        self._every = 1
        self._count = 0
        self._last = (0.0, 0)

    def add(self, step: int, loss: float, elapsed_s: float, samples: int) -> None:
        """Record a step.

        Args:
            step: Global step.
            loss: Its loss.
            elapsed_s: Training time so far [s].
            samples: Samples so far.
        """
        self._count += 1
        if self._count % self._every:
            return
        before_s, before = self._last
        self._last = (elapsed_s, samples)
        self.steps.append(step)
        self.losses.append(loss)
        self.samples_per_s.append((samples - before) / (elapsed_s - before_s) if elapsed_s > before_s else 0.0)
        if len(self.steps) >= _MOST:
            for values in (self.steps, self.losses, self.samples_per_s):
                del values[::2]
            self._every *= 2
