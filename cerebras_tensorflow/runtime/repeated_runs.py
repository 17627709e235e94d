"""Runs of the same fetches and feeds, step after step, without the work that Session.run repeats in each call."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from cerebras_tensorflow import tf_private

_MOST_RUNS = 50  # kinds of runs that are prepared; hooks may fetch other tensors in each step


class RepeatedRuns:
    """Runs a session. A kind of run, which is its fetches and feeds, is prepared once.

    Args:
        session: The TensorFlow session.
        after_preparing: Called each time that TensorFlow has prepared a kind of run, before its first run.
    """

    def __init__(self, session: Any, after_preparing: Callable[[], None] = lambda: None) -> None:
        self._session = session
        self._after_preparing = after_preparing
        self._prepared: dict[tuple[tuple[str, ...], tuple[str, ...]], Callable[..., Any]] = {}

    def run(self, fetches: Any, feeds: Mapping[Any, Any]) -> Any:
        """Return what Session.run returns, with its errors."""
        if not _is_plain(fetches) or not all(isinstance(key, str) for key in feeds):
            return self._session.run(fetches, feeds)
        elements = list(_elements(fetches))
        kind = (tuple(element.name for element in elements), tuple(feeds))
        run = self._prepared.get(kind)
        if run is None:
            is_special = any(element.name in feeds or _may_look_dead(element) for element in elements)
            if is_special or not elements or len(self._prepared) == _MOST_RUNS:
                return self._session.run(fetches, feeds)
            run = self._prepared[kind] = self._prepare(elements, list(feeds))
        values = iter(run(*feeds.values()))
        return _packed(fetches, values)

    def _prepare(self, elements: list[Any], feeds: list[str]) -> Callable[..., Any]:
        """Return a function: values of the feeds -> value of each element, None for an op."""
        tensors = list(dict.fromkeys(element.name for element in elements if isinstance(element, tf.Tensor)))
        targets = list(dict.fromkeys(element.name for element in elements if isinstance(element, tf.Operation)))
        run = tf_private.callable_of(self._session, tensors, targets, feeds)
        self._after_preparing()
        fed_tensors = [_FedTensor(self._session.graph.get_tensor_by_name(name)) for name in feeds]
        places = {name: place for place, name in enumerate(tensors)}
        order = [places.get(element.name) for element in elements]

        def values(*fed: Any) -> Iterator[Any]:
            arrays = [tensor.array(value) for tensor, value in zip(fed_tensors, fed, strict=True)]
            fetched = run(*arrays)
            for name, value in zip(tensors, fetched, strict=True):
                if getattr(value, "shape", None) == (0,) and value.dtype == np.float32:  # see _may_look_dead
                    raise tf.errors.InvalidArgumentError(None, None, f"{name} does not have value")
            return (None if place is None else fetched[place] for place in order)

        return values


class _FedTensor:
    """A tensor that is fed in each run. Its values have few different shapes, and each is checked once in a row."""

    def __init__(self, tensor: Any) -> None:
        self._tensor = tensor
        self._dtype = np.dtype(tensor.dtype.as_numpy_dtype)
        self._last: tuple[int, ...] | None = None

    def array(self, value: Any) -> np.ndarray:
        """Return the array to feed.

        Raises:
            ValueError: If its shape is not that of the tensor, as in Session.run.
        """
        array = np.asarray(value, self._dtype)
        if array.shape != self._last:
            name, shape = self._tensor.name, self._tensor.shape
            if not shape.is_compatible_with(array.shape):
                raise ValueError(f"Cannot feed value of shape {array.shape} for Tensor {name}, which has shape {shape}")
            self._last = array.shape
        return array


def _may_look_dead(element: Any) -> bool:
    """Return whether a fetch's value may be an empty float32 vector.

    That is what TensorFlow's callable returns for a tensor of a branch that was not taken, or of an op that did not
    run. Session.run raises an error.
    """
    is_tensor = isinstance(element, tf.Tensor) and element.dtype == tf.float32
    return bool(is_tensor and element.shape.is_compatible_with([0]))


def _is_plain(fetches: Any) -> bool:
    """Whether a structure has only dicts, lists and tuples of tensors with a value, and of ops."""
    if isinstance(fetches, tf.Tensor):
        return fetches.dtype.is_numpy_compatible
    if isinstance(fetches, tf.Operation):
        return True
    if type(fetches) is dict:
        return all(map(_is_plain, fetches.values()))
    return (type(fetches) is list or _is_tuple(fetches)) and all(map(_is_plain, fetches))


def _is_tuple(value: Any) -> bool:
    return type(value) is tuple or (isinstance(value, tuple) and hasattr(value, "_fields"))


def _elements(fetches: Any) -> Iterator[Any]:
    """Yield the tensors and ops of a plain structure."""
    if isinstance(fetches, (tf.Tensor, tf.Operation)):
        yield fetches
    else:
        for part in fetches.values() if isinstance(fetches, dict) else fetches:
            yield from _elements(part)


def _packed(fetches: Any, values: Iterator[Any]) -> Any:
    """Return a plain structure with values in place of its tensors and ops."""
    if isinstance(fetches, (tf.Tensor, tf.Operation)):
        return next(values)
    if isinstance(fetches, dict):
        return {key: _packed(part, values) for key, part in fetches.items()}
    parts = [_packed(part, values) for part in fetches]
    if isinstance(fetches, list):
        return parts
    return type(fetches)(*parts) if hasattr(fetches, "_fields") else tuple(parts)
