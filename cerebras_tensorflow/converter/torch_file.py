"""Files of torch.save, read without torch and without running what they hold.

The format: a zip file, uncompressed, with a pickle (protocol 2) that names tensors and, for each storage, a member with
its raw bytes. A pickle can call any function; only the few that rebuild plain tensors are let through.
"""

from __future__ import annotations

import collections
import math
import os
import pickle
import struct
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from cerebras_tensorflow.errors import CheckpointError, CorruptCheckpointError
from cerebras_tensorflow.saver.interface import BytesLike, TensorEntry, TensorReader, as_bytes, flat_view

ZIP_SIGNATURE = b"PK\x03\x04"
_LEGACY_SIGNATURE = b"\x80\x02"
_MAX_RANK = 64  # of numpy's arrays

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


def is_torch_file(path: str) -> bool:
    """Whether a file is one of torch.save's, of either generation."""
    with open(path, "rb") as file:
        start = file.read(4)
    return start == ZIP_SIGNATURE or start.startswith(_LEGACY_SIGNATURE)


@dataclass(frozen=True)
class Leaf:
    """The place of a tensor in the nested content of a file."""

    name: str


@dataclass(frozen=True)
class _StorageKind:
    """What a pickle calls torch.FloatStorage and the like; nothing that it could call."""

    name: str


@dataclass(frozen=True)
class _Storage:
    dtype: np.dtype[Any]
    member: str


@dataclass(frozen=True)
class _Tensor:
    storage: _Storage
    offset: int  # elements
    shape: tuple[int, ...]
    strides: tuple[int, ...]  # elements

    @property
    def num_elements(self) -> int:
        """Elements of the storage from the tensor's first to its last."""
        last = sum((dim - 1) * stride for dim, stride in zip(self.shape, self.strides, strict=True))
        return 0 if 0 in self.shape else last + 1


class TorchReader(TensorReader):
    """The tensors of a file of torch.save; dicts inside each other give names joined by dots.

    Raises:
        CheckpointError: If the file is of the format before torch 1.6, or its pickle wants anything but plain tensors.
        CorruptCheckpointError: If it is damaged.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = os.fspath(path)
        try:
            self._file = open(self.path, "rb")  # noqa: SIM115 - closed by close()
        except OSError as exc:
            raise CheckpointError(f"{self.path}: cannot be opened: {exc.strerror}. Check the path.") from exc
        try:
            if self._file.read(4) != ZIP_SIGNATURE:
                raise CheckpointError(
                    f"{self.path}: written in the format before torch 1.6. Load it with torch and save it again."
                )
            self._zip = zipfile.ZipFile(self._file)
            pickles = [name for name in self._zip.namelist() if name.endswith("/data.pkl")]
            if len(pickles) != 1:
                raise CorruptCheckpointError(f"{self.path}: {len(pickles)} members called data.pkl; expected one")
            self._folder = pickles[0].removesuffix("data.pkl")
            with self._zip.open(pickles[0]) as stream:
                content = _PlainTensors(stream, self.path).load()
            self._tensors: dict[str, _Tensor] = {}
            # What the file holds, with a Leaf in the place of each tensor.
            self.tree = self._collect(content, "")
        except CheckpointError:
            self._file.close()
            raise
        except Exception as exc:  # a hostile or damaged pickle can fail in any way
            self._file.close()
            raise CorruptCheckpointError(
                f"{self.path}: not a file of torch.save, or damaged: {str(exc) or type(exc).__name__}"
            ) from exc

    def names(self) -> list[str]:
        return sorted(self._tensors)

    def __contains__(self, name: object) -> bool:
        return name in self._tensors

    def entry(self, name: str) -> TensorEntry:
        tensor = self._tensor(name)
        size = int(np.prod(tensor.shape, dtype=np.int64)) * tensor.storage.dtype.itemsize
        return TensorEntry(tensor.storage.dtype, tensor.shape, size)

    def read(self, name: str) -> np.ndarray[Any, Any]:
        tensor = self._tensor(name)
        itemsize = tensor.storage.dtype.itemsize
        num_elements = tensor.num_elements
        start, available = self._place(tensor.storage.member)
        if (tensor.offset + num_elements) * itemsize > available:
            raise CorruptCheckpointError(f"{self.path}: tensor {name!r} reaches past its storage of {available} bytes")
        flat = np.empty(num_elements, tensor.storage.dtype)
        self._file.seek(start + tensor.offset * itemsize)
        if self._file.readinto(flat.view(np.uint8).data) != flat.nbytes:
            raise CorruptCheckpointError(f"{self.path}: tensor {name!r} is truncated")
        strides = tuple(stride * itemsize for stride in tensor.strides)
        return np.ascontiguousarray(np.lib.stride_tricks.as_strided(flat, tensor.shape, strides)).reshape(tensor.shape)

    def read_into(self, name: str, buffer: BytesLike) -> None:
        target, value = flat_view(buffer), as_bytes(self.read(name))
        if target.size != value.size:
            raise ValueError(f"{self.path}: tensor {name!r} has {value.size} bytes, the buffer {target.size}")
        target[:] = value

    def read_slice(self, name: str, start: int, stop: int) -> np.ndarray[Any, Any]:
        rows: np.ndarray[Any, Any] = self.read(name)[start:stop]
        return rows

    def chunks(self, name: str) -> Iterator[BytesLike]:
        yield as_bytes(self.read(name))

    def verify(self) -> int:
        damaged = self._zip.testzip()
        if damaged is not None:
            raise CorruptCheckpointError(f"{self.path}: {damaged} does not match its checksum")
        return sum(self.entry(name).num_bytes for name in self._tensors)

    def check_complete(self) -> None:
        for name in self._tensors:
            self._place(self._tensor(name).storage.member)

    def close(self) -> None:
        self._file.close()

    def _tensor(self, name: str) -> _Tensor:
        if name not in self._tensors:
            raise KeyError(f"{self.path}: no tensor {name!r}; it has {len(self._tensors)} tensors")
        return self._tensors[name]

    def _place(self, member: str) -> tuple[int, int]:
        """Offset and size [B] of a storage in the file."""
        try:
            info = self._zip.getinfo(f"{self._folder}data/{member}")
        except KeyError as exc:
            raise CorruptCheckpointError(f"{self.path}: storage {member} is missing") from exc
        if info.compress_type != zipfile.ZIP_STORED:
            raise CheckpointError(f"{self.path}: storage {member} is compressed, which torch.save never does")
        self._file.seek(info.header_offset)
        header = self._file.read(30)
        if len(header) != 30:
            raise CorruptCheckpointError(f"{self.path}: storage {member} is truncated")
        name_bytes, extra_bytes = struct.unpack("<HH", header[26:30])
        return info.header_offset + 30 + name_bytes + extra_bytes, info.file_size

    def _collect(self, content: Any, prefix: str) -> Any:
        if isinstance(content, _Tensor):
            _check_plain(content, f"{self.path}: tensor {prefix!r}")
            self._tensors[prefix] = content
            return Leaf(prefix)
        if isinstance(content, dict):
            start = f"{prefix}." if prefix else ""
            return {key: self._collect(value, f"{start}{key}") for key, value in content.items()}
        if isinstance(content, (list, tuple)):
            return type(content)(self._collect(value, f"{prefix}.{number}") for number, value in enumerate(content))
        return content


class _PlainTensors(pickle.Unpickler):
    """Unpickles dicts of tensors; refuses all else."""

    def __init__(self, stream: Any, path: str) -> None:
        super().__init__(stream)
        self._path = path

    def find_class(self, module: str, name: str) -> Any:
        if module == "collections" and name == "OrderedDict":
            return collections.OrderedDict
        if module == "torch._utils" and name == "_rebuild_tensor_v2":
            return _rebuild_tensor
        if module == "torch._utils" and name == "_rebuild_parameter":
            return _rebuild_parameter
        if module == "torch" and name in STORAGES:
            return _StorageKind(name)
        if module == "torch" and name == "Size":
            return tuple
        raise CheckpointError(
            f"{self._path}: its pickle calls {module}.{name}, which a file of plain tensors does not need; it is not "
            "run. Load the file with torch where you trust it, and save its tensors alone."
        )

    def persistent_load(self, pid: Any) -> _Storage:
        kind, storage, member = pid[:3]
        if kind != "storage" or not isinstance(storage, _StorageKind):
            raise pickle.UnpicklingError(f"a reference of kind {kind!r}")
        return _Storage(np.dtype(STORAGES[storage.name]), str(member))


def _check_plain(tensor: _Tensor, what: str) -> None:
    """Refuse places that reading could not bear: numpy takes strides on trust, and would read what is not ours."""
    numbers = (tensor.offset, *tensor.shape, *tensor.strides)
    is_stored = isinstance(tensor.storage, _Storage) and isinstance(tensor.storage.dtype, np.dtype)
    is_sound = is_stored and len(tensor.shape) == len(tensor.strides) <= _MAX_RANK
    if not is_sound or not all(type(number) is int and 0 <= number < 2**63 for number in numbers):
        raise CorruptCheckpointError(
            f"{what}: offset {tensor.offset}, shape {tensor.shape}, strides {tensor.strides} are not those of a tensor"
        )
    if tensor.num_elements < math.prod(tensor.shape):
        raise CheckpointError(f"{what}: its elements share memory. Save it as a tensor of its own (contiguous, clone).")


def _rebuild_tensor(storage: _Storage, offset: int, shape: Any, strides: Any, *_: Any) -> _Tensor:
    return _Tensor(storage, offset, tuple(shape), tuple(strides))


def _rebuild_parameter(tensor: _Tensor, *_: Any) -> _Tensor:
    return tensor
