"""Parts of the wheel tensorflow-estimator that we replace: usage counters, the decorator of its public names."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

_T = TypeVar("_T")


class _Gauge:
    """Counts nothing: the original told Google's own monitoring which canned estimators are used."""

    def get_cell(self, *labels: Any) -> _Gauge:
        """Return itself."""
        return self

    def set(self, value: Any) -> None:
        """Do nothing."""


_canned_estimator_api_gauge = _Gauge()


def estimator_export(*names: Any, **words: Any) -> Callable[[_T], _T]:
    """Return a decorator that changes nothing; the original warns at each use that tf.estimator is deprecated."""
    return lambda value: value
