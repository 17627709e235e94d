"""Sends values of variables from the first CSX to all others: small ones together, a large one in parts.

A model has hundreds of small variables, and each message takes several round trips.
"""

from __future__ import annotations

import numpy as np

from cerebras_tensorflow.graph.program import dtype_from_name
from cerebras_tensorflow.runtime.collectives.interface import Collectives
from cerebras_tensorflow.runtime.csx.messages import FIRST, Message, send

VARIABLE, VARIABLES = "variable", "variables"  # kinds of messages
_TOGETHER_BYTES = 4 << 20


class VariableSender:
    """Sends values of variables.

    Args:
        ranks: The group of all CSX; this one is the first.
    """

    def __init__(self, ranks: Collectives) -> None:
        self._ranks = ranks
        self._waiting: dict[str, np.ndarray] = {}
        self._num_bytes = 0

    def add(self, name: str, value: np.ndarray) -> None:
        """Send a value, at the latest in `end`."""
        if value.nbytes >= _TOGETHER_BYTES:
            described = {"name": name, "dtype": value.dtype.name, "shape": list(value.shape)}
            self._send(Message(VARIABLE, described))
            self._ranks.broadcast(np.ascontiguousarray(value).reshape(-1).view(np.uint8), FIRST)
            return
        self._waiting[name] = value
        self._num_bytes += value.nbytes
        if self._num_bytes >= _TOGETHER_BYTES:
            self.end()

    def end(self) -> None:
        """Send what has not been sent."""
        if self._waiting:
            self._send(Message(VARIABLES, {}, self._waiting))
        self._waiting, self._num_bytes = {}, 0

    def _send(self, message: Message) -> None:
        send(self._ranks, [message] * self._ranks.size)


def received(message: Message, ranks: Collectives) -> dict[str, np.ndarray]:
    """Return the values of variables in a message, by name."""
    if message.kind == VARIABLES:
        return dict(message.arrays)
    dtype, shape = dtype_from_name(message.values["dtype"]), tuple(message.values["shape"])
    value = np.empty(int(np.prod(shape, dtype=np.int64)), dtype)
    ranks.broadcast(value.view(np.uint8), FIRST)
    return {message.values["name"]: value.reshape(shape)}
