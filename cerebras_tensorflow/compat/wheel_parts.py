"""Replaces parts of the wheel tensorflow-estimator: usage counters, and the decorator of its public names."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

_T = TypeVar("_T")


class _Gauge:
    """Counts nothing. The original reports to Google's monitoring which canned estimators are used."""

    def get_cell(self, *labels: Any) -> _Gauge:  # noqa: ARG002 - the original's signature
        """Return itself."""
        return self

    def set(self, value: Any) -> None:
        """Do nothing."""


_canned_estimator_api_gauge = _Gauge()


def estimator_export(*names: Any, **words: Any) -> Callable[[_T], _T]:  # noqa: ARG001 - the original's signature
    """Return a decorator without effect. The original's warns at each use that tf.estimator is deprecated."""
    return lambda value: value
