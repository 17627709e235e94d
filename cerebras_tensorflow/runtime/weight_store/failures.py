"""Errors of weight stores. A store keeps its first error, and raises it at every later use."""

from __future__ import annotations

import threading

from cerebras_tensorflow.errors import StoreError
from cerebras_tensorflow.graph.program import WeightSpec


class FirstFailure:
    """The first error of a store. After it the store's content may be wrong, so no step may use it."""

    def __init__(self) -> None:
        self._error: StoreError | None = None
        self._lock = threading.Lock()

    @property
    def has_happened(self) -> bool:
        """Whether an error was kept."""
        return self._error is not None

    def keep(self, error: StoreError) -> StoreError:
        """Keep an error, unless there was one before; return the first."""
        with self._lock:
            self._error = self._error or error
            return self._error

    def check(self) -> None:
        """Raise the first error, if there was one.

        Raises:
            StoreError: The error that was kept first.
        """
        if self._error is not None:
            raise self._error


def never_written(spec: WeightSpec) -> StoreError:
    """Return the error for a read of a weight that has no value yet."""
    return StoreError(
        f"{spec.name} was never written to the weight store, or not all of it: initialise it, or restore it from a "
        "checkpoint, before a step reads it"
    )


def unexpected(spec: WeightSpec, error: BaseException) -> StoreError:
    """Return the error for a write that failed with an exception that the store does not expect."""
    failure = StoreError(
        f"a write of {spec.name} to the weight store failed: {type(error).__name__}: {error}. Start again: the run "
        "goes on from the last checkpoint."
    )
    failure.__cause__ = error
    return failure
