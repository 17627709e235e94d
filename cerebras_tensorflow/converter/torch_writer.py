"""Writing files of torch.save, without torch; `torch.load(path, weights_only=True)` reads them.

Tensors are written one by one. The pickle that names them comes last; it is assembled from opcodes, because the pickle
module could name torch's functions only with torch installed.
"""

from __future__ import annotations

import contextlib
import os
import struct
import zipfile
from collections.abc import Iterable
from typing import Any

import numpy as np

from cerebras_tensorflow.converter.plain_pickle import STORAGES
from cerebras_tensorflow.converter.torch_file import Leaf
from cerebras_tensorflow.errors import CheckpointError
from cerebras_tensorflow.locations import local_path
from cerebras_tensorflow.saver.files.atomic import PartialFile, reporting
from cerebras_tensorflow.saver.interface import BytesLike, TensorEntry, TensorWriter, as_bytes, flat_view

_STORAGE_OF = {np.dtype(dtype): name for name, dtype in STORAGES.items()}


class TorchWriter(TensorWriter):
    """A file of torch.save being written, tensor by tensor.

    Args:
        path: Final path.
        key: If given, the file has the tensors in a dict under this key, as Model Zoo checkpoints have under `model`.
        tree: If given, the content of the file: dicts, lists, tuples, numbers, strings, None, and a Leaf for each added
            tensor.
    """

    def __init__(self, path: str | os.PathLike[str], key: str | None = None, tree: Any = None) -> None:
        self.path = os.path.abspath(local_path(path))
        self._key, self._tree = key, tree
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
            raise ValueError(f"{self.path}: tensor {name!r} is added twice")
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
                self._zip.writestr(zipfile.ZipInfo("archive/data.pkl"), _pickled(self._entries, self._content()))
                self._zip.writestr(zipfile.ZipInfo("archive/byteorder"), b"little")
                self._zip.writestr(zipfile.ZipInfo("archive/version"), b"3\n")
                self._zip.close()
                self._stream.close()
            self._partial.commit()
        finally:
            self.abort()

    def _content(self) -> Any:
        if self._tree is not None:
            return self._tree
        leaves = {name: Leaf(name) for name in self._entries}
        return leaves if self._key is None else {self._key: leaves}

    def abort(self) -> None:
        if self._partial is not None:
            # Close the zip file now: otherwise garbage collection would write its directory to a file that is gone.
            with contextlib.suppress(ValueError, OSError):
                self._zip.close()
            with contextlib.suppress(OSError):
                self._stream.close()
            self._partial.discard()
            self._partial = None


def _pickled(entries: dict[str, TensorEntry], content: Any) -> bytes:
    """Return the pickle (protocol 2) of nested content with a Leaf for each tensor."""
    numbers = {name: number for number, name in enumerate(entries)}

    def encoded(value: Any) -> bytes:
        if isinstance(value, Leaf):
            return _tensor(numbers[value.name], entries[value.name])
        if isinstance(value, dict):
            return b"}(" + b"".join(encoded(key) + encoded(item) for key, item in value.items()) + b"u"
        if isinstance(value, (list, tuple)):
            start, end = (b"](", b"e") if isinstance(value, list) else (b"(", b"t")
            return start + b"".join(map(encoded, value)) + end
        if value is None or isinstance(value, bool):
            return {None: b"N", True: b"\x88", False: b"\x89"}[value]
        if isinstance(value, str):
            return _text(value)
        return _number(value) if isinstance(value, int) else b"G" + struct.pack(">d", value)

    return b"\x80\x02" + encoded(content) + b"."


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
    if -(2**31) <= value < 2**31:
        return b"J" + struct.pack("<i", value)
    encoded = value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True)
    return b"\x8a" + bytes([len(encoded)]) + encoded
