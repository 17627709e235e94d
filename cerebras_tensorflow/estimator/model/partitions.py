"""Partitioned variables: several variables of the graph that are one tensor in a checkpoint."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from cerebras_tensorflow.errors import CheckpointError


class PartKey(str):
    """The name, in checkpoints, of the tensor that a variable is a part of.

    Attributes:
        shape: Shape of the whole tensor.
        region: The part within it.
    """

    shape: tuple[int, ...]
    region: tuple[slice, ...]

    def __new__(cls, name: str, shape: tuple[int, ...], region: tuple[slice, ...]) -> PartKey:
        """Return a key."""
        key = super().__new__(cls, name)
        key.shape, key.region = shape, region
        return key


def checkpoint_key(variable: Any) -> str:
    """Return the name of a variable in checkpoints: its own, or that of the whole of which it is a part."""
    part = getattr(variable, "_save_slice_info", None)  # private: no public name for it
    own = str(variable.name).split(":")[0]
    if part is None:
        return own
    if list(part.full_shape) == variable.shape.as_list():
        return str(part.full_name)
    region = tuple(slice(start, start + size) for start, size in zip(part.var_offset, part.var_shape, strict=True))
    return PartKey(part.full_name, tuple(part.full_shape), region)


class Wholes:
    """Puts tensors together from their parts."""

    def __init__(self) -> None:
        self._values: dict[str, np.ndarray] = {}
        self._missing: dict[str, int] = {}

    def add(
        self, key: PartKey, dtype: np.dtype, shape: tuple[int, ...], value: np.ndarray | Iterable[np.ndarray]
    ) -> None:
        """Add a part: an array, or the pieces of its bytes."""
        if str(key) not in self._values:
            self._values[str(key)] = np.empty(key.shape, dtype)
            self._missing[str(key)] = self._values[str(key)].size
        if not isinstance(value, np.ndarray):
            value = np.frombuffer(b"".join(np.ascontiguousarray(piece).tobytes() for piece in value), dtype)
        self._values[str(key)][key.region] = value.reshape(shape)
        self._missing[str(key)] -= int(np.prod(shape, dtype=np.int64))

    def __iter__(self) -> Iterator[tuple[str, np.ndarray]]:
        """Yield (name, value) of each tensor.

        Raises:
            CheckpointError: If a tensor lacks a part.
        """
        for name, value in self._values.items():
            if self._missing[name]:
                raise CheckpointError(
                    f"{name} lacks {self._missing[name]} of {value.size} elements: the Scaffold's Saver saves only "
                    "some parts of this partitioned variable. Save all of them."
                )
            yield name, value
