"""Unpickling nested dicts of tensors from torch.save, without running any code that the pickle names.

A pickle can call any function, and use any amount of time and memory. This reader allows only the few functions that
rebuild plain tensors, and makes the cost of each byte of the pickle small and about equal.
"""

from __future__ import annotations

import collections
import math
import pickle
from dataclasses import dataclass
from typing import Any, ClassVar

import ml_dtypes
import numpy as np

from cerebras_tensorflow.errors import CheckpointError, CorruptCheckpointError
from cerebras_tensorflow.saver.bounded_unpickler import BoundedUnpickler, check_hashed

STORAGES: dict[str, Any] = {
    "FloatStorage": np.float32,
    "DoubleStorage": np.float64,
    "HalfStorage": np.float16,
    "BFloat16Storage": ml_dtypes.bfloat16,
    "LongStorage": np.int64,
    "IntStorage": np.int32,
    "ShortStorage": np.int16,
    "CharStorage": np.int8,
    "ByteStorage": np.uint8,
    "BoolStorage": np.bool_,
}

_MAX_RANK = 64  # of NumPy's arrays
# Limit of the total pairs of OrderedDicts that get their pairs as arguments, as torch wrote them in Python 2.
_MAX_PAIRS = 1_000_000
# Opcodes that a file of plain tensors does not need.
_REFUSED_OPCODES = (
    pickle.INST,
    pickle.OBJ,
    pickle.NEWOBJ,
    pickle.NEWOBJ_EX,
    pickle.EXT1,
    pickle.EXT2,
    pickle.EXT4,
    pickle.EMPTY_SET,
    pickle.ADDITEMS,
    pickle.FROZENSET,
    pickle.BYTEARRAY8,
    pickle.NEXT_BUFFER,
    pickle.READONLY_BUFFER,
)


@dataclass(frozen=True)
class Storage:
    """The raw bytes behind tensors, which are views of it.

    Attributes:
        dtype: Element type.
        member: Name of the member in the zip file.
    """

    dtype: np.dtype[Any]
    member: str


@dataclass(frozen=True)
class StoredTensor:
    """A view of a storage; offset and strides count elements."""

    storage: Storage
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    @property
    def num_elements(self) -> int:
        """Number of the storage's elements from the tensor's first to its last."""
        last = sum((dim - 1) * stride for dim, stride in zip(self.shape, self.strides, strict=True))
        return 0 if 0 in self.shape else last + 1


@dataclass(frozen=True)
class _StorageKind:
    """Stands for torch.FloatStorage and similar classes in a pickle. It cannot be called."""

    name: str


class PlainTensors(BoundedUnpickler):
    """Reads one pickle of nested dicts, lists, texts, numbers and tensors.

    Args:
        stream: The pickle.
        path: The file of the pickle, for messages.
    """

    dispatch: ClassVar[dict[int, Any]] = dict(BoundedUnpickler.dispatch)
    for _code in _REFUSED_OPCODES:
        del dispatch[_code[0]]

    def __init__(self, stream: Any, path: str) -> None:
        super().__init__(stream)
        self._path = path
        self._pairs_left = _MAX_PAIRS

    def find_class(self, module: str, name: str) -> Any:
        """Return our replacement of a function that the pickle names.

        Raises:
            CheckpointError: If plain tensors do not need the function.
        """
        if module == "torch" and name in STORAGES:
            return _StorageKind(name)
        known = {
            ("collections", "OrderedDict"): self._ordered_dict,
            ("torch._utils", "_rebuild_tensor_v2"): _rebuild_tensor,
            ("torch._utils", "_rebuild_parameter"): _rebuild_parameter,
            ("torch", "Size"): _size,
        }
        if (module, name) in known:
            return known[module, name]
        raise CheckpointError(
            f"{self._path}: its pickle calls {module[:80]}.{name[:80]}, which a file of plain tensors does not need; "
            "it is not run. If you trust the file, load it with torch and save only its tensors."
        )

    def persistent_load(self, pid: Any) -> Storage:
        """Return the storage that a reference names."""
        kind, storage, member = pid[:3]
        if kind != "storage" or not isinstance(storage, _StorageKind) or not isinstance(member, str):
            raise pickle.UnpicklingError("a reference that is not to a storage")
        return Storage(np.dtype(STORAGES[storage.name]), member)

    def load_build(self) -> None:
        """Drop the attributes of an OrderedDict (state_dict's `_metadata`); refuse those of any other object."""
        self.stack.pop()
        if not isinstance(self.stack[-1], collections.OrderedDict):
            raise pickle.UnpicklingError(f"attributes for a {type(self.stack[-1]).__name__}")

    dispatch[pickle.BUILD[0]] = load_build

    def _ordered_dict(self, pairs: Any = ()) -> Any:
        self._pairs_left -= len(pairs)
        if self._pairs_left < 0:
            raise pickle.UnpicklingError(f"OrderedDicts of more than {_MAX_PAIRS} pairs")
        for key, _ in pairs:
            check_hashed(key)
        return collections.OrderedDict(pairs)


def check_plain(tensor: StoredTensor, what: str) -> None:
    """Check that a tensor can be read safely. NumPy does not check strides, and could read beyond the storage.

    Raises:
        CorruptCheckpointError: If its offset, shape or strides are invalid.
        CheckpointError: If its elements share memory.
    """
    numbers = (tensor.offset, *tensor.shape, *tensor.strides)
    is_stored = isinstance(tensor.storage, Storage) and isinstance(tensor.storage.dtype, np.dtype)
    is_sound = is_stored and len(tensor.shape) == len(tensor.strides) <= _MAX_RANK
    if not is_sound or not all(type(number) is int and 0 <= number < 2**63 for number in numbers):
        raise CorruptCheckpointError(f"{what}: its offset, shape and strides are not those of a tensor")
    if tensor.num_elements < math.prod(tensor.shape):
        raise CheckpointError(f"{what}: its elements share memory. Save it as a separate tensor (contiguous, clone).")


def _size(dims: Any = ()) -> tuple[Any, ...]:
    if len(dims) > _MAX_RANK:
        raise pickle.UnpicklingError(f"a tensor of {len(dims)} dims")
    return tuple(dims)


def _rebuild_tensor(storage: Storage, offset: int, shape: Any, strides: Any, *_: Any) -> StoredTensor:
    return StoredTensor(storage, offset, _size(shape), _size(strides))


def _rebuild_parameter(tensor: StoredTensor, *_: Any) -> StoredTensor:
    return tensor
