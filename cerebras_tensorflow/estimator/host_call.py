"""host_call: metrics that run on the host in a separate graph, on tensors from the device."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf


def validate_host_call(host_call: Any) -> None:
    """Check the form of a host_call.

    Raises:
        ValueError: If the form is wrong, with the texts of release 1.7.
    """
    if not isinstance(host_call, Iterable) or len(parts := list(host_call)) not in (2, 3):
        raise ValueError(f"`host_call` must be an iterable with length 2 or 3. Instead received {host_call}")
    if not callable(parts[0]):
        raise ValueError(f"Expected first item of `host_call` to be a callable. Instead received {type(parts[0])}")
    for name, part in zip(("second", "third"), parts[1:], strict=False):
        if not isinstance(part, Iterable):
            raise ValueError(f"Expected {name} item of `host_call` to be an iterable. Instead received {type(part)}")


def host_call_to_eval_metric_ops(host_call: Any) -> dict[str, tuple[Any, Any]]:
    """Call a host_call's function in the current graph and return its metrics.

    Metrics in a tuple or list get the names elem_0, elem_1, ... Items that are not (value, update op) pairs are left
    out.

    Raises:
        ValueError: If the function returns neither a mapping nor a sequence.
    """
    function, arguments = host_call[0], list(host_call[1])
    result = function(*arguments)
    if isinstance(result, Mapping):
        items = list(result.items())
    elif isinstance(result, (tuple, list)):
        items = [(f"elem_{number}", value) for number, value in enumerate(result)]
    else:
        raise ValueError(f"Invalid `eval_metric_ops` of type {type(result)}")
    return {
        key: (value[0], value[1])
        for key, value in items
        if isinstance(value, (tuple, list))
        and len(value) == 2
        and isinstance(value[0], (tf.Tensor, tf.Variable))
        and isinstance(value[1], (tf.Tensor, tf.Operation, tf.Variable))
    }


class HostMetrics:
    """The metrics of a host_call, updated after each step.

    Attributes:
        fetches: Tensors of the device's graph; `update` takes their values in this order.
    """

    def __init__(self, host_call: Any) -> None:
        flat = tf.nest.flatten(list(host_call[1]), expand_composites=True)
        self.fetches: list[Any] = [tensor for tensor in flat if isinstance(tensor, (tf.Tensor, tf.Variable))]
        self._graph = tf.Graph()
        with self._graph.as_default():
            self._inputs = [
                tf.compat.v1.placeholder(tensor.dtype, tensor.shape, name=f"host_call/{number}")
                for number, tensor in enumerate(self.fetches)
            ]
            given = iter(self._inputs)
            replaced = [next(given) if isinstance(tensor, (tf.Tensor, tf.Variable)) else tensor for tensor in flat]
            arguments = tf.nest.pack_sequence_as(list(host_call[1]), replaced, expand_composites=True)
            metrics = host_call_to_eval_metric_ops((host_call[0], arguments))
            self._values = {key: value for key, (value, _) in metrics.items()}
            self._updates = [update for _, update in metrics.values()]
            self._session = tf.compat.v1.Session(graph=self._graph)
            self._session.run([tf.compat.v1.local_variables_initializer(), tf.compat.v1.tables_initializer()])

    def update(self, values: list[np.ndarray]) -> None:
        """Update the metrics with the values of one step."""
        if self._updates:
            self._session.run(self._updates, dict(zip(self._inputs, values, strict=True)))

    def results(self) -> dict[str, np.ndarray]:
        """Return the metrics over all steps so far."""
        return dict(self._session.run(self._values)) if self._values else {}

    def close(self) -> None:
        """Release the session."""
        self._session.close()
