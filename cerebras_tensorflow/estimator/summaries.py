"""Contexts in which runs write the model's summaries, or do not. Old scripts put them around a run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_enabled: ContextVar[bool] = ContextVar("cerebras_summaries_enabled", default=True)


def are_enabled() -> bool:
    """Whether to write the model's own summaries. The summary of the loss is always written."""
    return _enabled.get()


@contextmanager
def cs1_enable_summaries() -> Iterator[None]:
    """Write the model's summaries in the runs inside."""
    token = _enabled.set(True)
    try:
        yield
    finally:
        _enabled.reset(token)


@contextmanager
def cs1_disable_summaries() -> Iterator[None]:
    """Leave the model's summaries out of the runs inside."""
    token = _enabled.set(False)
    try:
        yield
    finally:
        _enabled.reset(token)
