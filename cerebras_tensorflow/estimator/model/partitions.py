"""Partitioned variables: several variables of the graph that are one tensor in a checkpoint."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from cerebras_tensorflow.errors import CheckpointError
from cerebras_tensorflow.saver.interface import TensorReader


class PartKey(str):
    """The name, in checkpoints, of the tensor that a variable is a part of.

    Attributes:
        shape: Shape of the whole tensor.
        region: The part within it.
        has_gaps: Whether the parts in the graph do not cover the tensor. TensorFlow names some optimizer slots so that
            each slot is the only part of its tensor, such as `weights/part_0/Ftrl`. The rest is saved as 0.
    """

    shape: tuple[int, ...]
    region: tuple[slice, ...]
    has_gaps: bool

    def __new__(cls, name: str, shape: tuple[int, ...], region: tuple[slice, ...], has_gaps: bool = False) -> PartKey:
        """Return a key."""
        key = super().__new__(cls, name)
        key.shape, key.region, key.has_gaps = shape, region, has_gaps
        return key

    def renamed(self, name: str) -> PartKey:
        """Return the key of the same part under another name of the tensor."""
        return PartKey(name, self.shape, self.region, self.has_gaps)


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


def checkpoint_keys(variables: Mapping[str, Any]) -> dict[str, str]:
    """Return name -> name in checkpoints, of all variables of a graph. A key of a part of a tensor is a PartKey.

    Args:
        variables: Name -> variable.
    """
    keys = {name: checkpoint_key(variable) for name, variable in variables.items()}
    parts = [key for key in keys.values() if isinstance(key, PartKey)]
    covered = Counter[str]()
    for key in parts:
        covered[str(key)] += math.prod(dim.stop - dim.start for dim in key.region)
    for key in parts:
        key.has_gaps = covered[str(key)] < math.prod(key.shape)
    return keys


def read_key(reader: TensorReader, key: str) -> np.ndarray:
    """Return the value of a variable: a tensor of a checkpoint, or a part of one.

    Args:
        reader: The checkpoint.
        key: The name of the tensor; a PartKey for a part.

    Raises:
        KeyError, CheckpointError: As `reader.read_region`.
    """
    return reader.read_region(key, key.region) if isinstance(key, PartKey) else reader.read(key)


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
            self._values[str(key)] = np.zeros(key.shape, dtype) if key.has_gaps else np.empty(key.shape, dtype)
            self._missing[str(key)] = 0 if key.has_gaps else self._values[str(key)].size
        if not isinstance(value, np.ndarray):
            value = np.frombuffer(b"".join(np.ascontiguousarray(piece).tobytes() for piece in value), dtype)
        self._values[str(key)][key.region] = value.reshape(shape)
        if not key.has_gaps:
            self._missing[str(key)] -= math.prod(shape)

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
