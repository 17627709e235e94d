"""Files of torch.save, read and written without torch, and read without running what they hold.

The format: a zip file, uncompressed, with a pickle (protocol 2) that names tensors and, for each storage, a member with
its raw bytes. A pickle can call any function; only the few that rebuild plain tensors are let through.
"""

from __future__ import annotations

import collections
import contextlib
import os
import pickle
import struct
import zipfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from cerebras_tensorflow.errors import CheckpointError, CorruptCheckpointError
from cerebras_tensorflow.saver.atomic import PartialFile, reporting
from cerebras_tensorflow.saver.interface import BytesLike, TensorEntry, TensorReader, TensorWriter, as_bytes, flat_view

ZIP_SIGNATURE = b"PK\x03\x04"
_LEGACY_SIGNATURE = b"\x80\x02"

_STORAGES: dict[str, Any] = {
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
_STORAGE_OF = {np.dtype(dtype): name for name, dtype in _STORAGES.items()}


def is_torch_file(path: str) -> bool:
    """Whether a file is one of torch.save's, of either generation."""
    with open(path, "rb") as file:
        start = file.read(4)
    return start == ZIP_SIGNATURE or start.startswith(_LEGACY_SIGNATURE)


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
        except CheckpointError:
            self._file.close()
            raise
        except (
            zipfile.BadZipFile,
            pickle.UnpicklingError,
            EOFError,
            ValueError,
            KeyError,
            TypeError,
            IndexError,
        ) as exc:
            self._file.close()
            raise CorruptCheckpointError(f"{self.path}: not a file of torch.save, or damaged: {exc}") from exc
        self._tensors: dict[str, _Tensor] = {}
        self._collect(content, "")

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
        last = sum((dim - 1) * stride for dim, stride in zip(tensor.shape, tensor.strides, strict=True))
        num_elements = 0 if 0 in tensor.shape else last + 1
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
        name_bytes, extra_bytes = struct.unpack("<HH", header[26:30])
        return info.header_offset + 30 + name_bytes + extra_bytes, info.file_size

    def _collect(self, content: Any, prefix: str) -> None:
        if isinstance(content, _Tensor):
            self._tensors[prefix] = content
        elif isinstance(content, dict):
            for key, value in content.items():
                self._collect(value, f"{prefix}.{key}" if prefix else str(key))
        elif isinstance(content, list):
            for number, value in enumerate(content):
                self._collect(value, f"{prefix}.{number}")


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
        if module == "torch" and name in _STORAGES:
            return np.dtype(_STORAGES[name])
        if module == "torch" and name == "Size":
            return tuple
        raise CheckpointError(
            f"{self._path}: its pickle calls {module}.{name}, which a file of plain tensors does not need; it is not "
            "run. Load the file with torch where you trust it, and save its tensors alone."
        )

    def persistent_load(self, pid: Any) -> _Storage:
        kind, dtype, member = pid[:3]
        if kind != "storage":
            raise pickle.UnpicklingError(f"a reference of kind {kind!r}")
        return _Storage(dtype, str(member))


def _rebuild_tensor(storage: _Storage, offset: int, shape: Any, strides: Any, *_: Any) -> _Tensor:
    return _Tensor(storage, int(offset), tuple(shape), tuple(strides))


def _rebuild_parameter(tensor: _Tensor, *_: Any) -> _Tensor:
    return tensor


class TorchWriter(TensorWriter):
    """A file of torch.save being written, tensor by tensor; `torch.load(path, weights_only=True)` reads it.

    Args:
        path: Final path.
        key: Where given, the tensors are in a dict under this key, as Model Zoo checkpoints have them under `model`.
    """

    def __init__(self, path: str | os.PathLike[str], key: str | None = None) -> None:
        self.path = os.path.abspath(path)
        self._key = key
        self._entries: dict[str, TensorEntry] = {}
        self._partial: PartialFile | None = PartialFile(self.path)
        self._stream = os.fdopen(os.dup(self._partial.fd), "wb")
        self._zip = zipfile.ZipFile(self._stream, "w", zipfile.ZIP_STORED, allowZip64=True)

    def add(self, name: str, array: Any) -> None:
        array = np.asarray(array)
        self.add_chunks(name, array.dtype, array.shape, [as_bytes(array)])

    def add_chunks(self, name: str, dtype: Any, shape: tuple[int, ...], chunks: Iterable[BytesLike]) -> None:
        dtype = np.dtype(dtype)
        if name in self._entries:
            raise ValueError(f"{name}: added before")
        if dtype not in _STORAGE_OF:
            raise ValueError(f"{name}: a torch file cannot hold {dtype}")
        expected = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        member = zipfile.ZipInfo(f"archive/data/{len(self._entries)}")
        done = 0
        with reporting(self.path), self._zip.open(member, "w", force_zip64=True) as stream:
            for chunk in chunks:
                view = flat_view(chunk)
                done += view.size
                stream.write(view.data)
        if done != expected:
            raise ValueError(f"{name}: the chunks hold {done} bytes, {expected} are needed")
        self._entries[name] = TensorEntry(dtype, tuple(int(dim) for dim in shape), done)

    def commit(self) -> None:
        if self._partial is None:
            raise CheckpointError(f"{self.path}: this writer has ended; open a new one to write again")
        try:
            with reporting(self.path):
                self._zip.writestr(zipfile.ZipInfo("archive/data.pkl"), _pickled(self._entries, self._key))
                self._zip.writestr(zipfile.ZipInfo("archive/byteorder"), b"little")
                self._zip.writestr(zipfile.ZipInfo("archive/version"), b"3\n")
                self._zip.close()
                self._stream.close()
            self._partial.commit()
        finally:
            self.abort()

    def abort(self) -> None:
        if self._partial is not None:
            # A zip file that is not closed writes its directory when it is collected, into a file that is gone by then.
            with contextlib.suppress(ValueError, OSError):
                self._zip.close()
            with contextlib.suppress(OSError):
                self._stream.close()
            self._partial.discard()
            self._partial = None


def _pickled(entries: dict[str, TensorEntry], key: str | None) -> bytes:
    """The pickle of a dict of tensors, opcode by opcode: naming torch's functions needs no torch."""
    body = b"".join(_text(name) + _tensor(number, entry) for number, (name, entry) in enumerate(entries.items()))
    tensors = b"}(" + body + b"u"
    content = tensors if key is None else b"}(" + _text(key) + tensors + b"u"
    return b"\x80\x02" + content + b"."


def _tensor(number: int, entry: TensorEntry) -> bytes:
    num_elements = entry.num_bytes // entry.dtype.itemsize
    storage_class = f"ctorch\n{_STORAGE_OF[entry.dtype]}\n".encode()
    storage = (
        b"(" + _text("storage") + storage_class + _text(str(number)) + _text("cpu") + _number(num_elements) + b"tQ"
    )
    strides, stride = [], 1
    for dim in reversed(entry.shape):
        strides.append(stride)
        stride *= dim
    shape = b"(" + b"".join(map(_number, entry.shape)) + b"t"
    stride_tuple = b"(" + b"".join(map(_number, reversed(strides))) + b"t"
    hooks = b"ccollections\nOrderedDict\n)R"
    return (
        b"ctorch._utils\n_rebuild_tensor_v2\n(" + storage + _number(0) + shape + stride_tuple + b"\x89" + hooks + b"tR"
    )


def _text(text: str) -> bytes:
    encoded = text.encode()
    return b"X" + struct.pack("<I", len(encoded)) + encoded


def _number(value: int) -> bytes:
    if value < 2**31:
        return b"J" + struct.pack("<i", value)
    encoded = value.to_bytes(value.bit_length() // 8 + 1, "little")
    return b"\x8a" + bytes([len(encoded)]) + encoded
