"""Reading files of torch.save, without torch and without running code in them.

The format is an uncompressed zip file. It has a pickle (protocol 2) that names the tensors, and a member with the raw
bytes of each storage. `plain_pickle` reads the pickle.
"""

from __future__ import annotations

import os
import struct
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from cerebras_tensorflow.converter.plain_pickle import PlainTensors, StoredTensor, check_plain
from cerebras_tensorflow.errors import CheckpointError, CorruptCheckpointError
from cerebras_tensorflow.saver.interface import (
    BytesLike,
    TensorEntry,
    TensorReader,
    as_bytes,
    flat_view,
    missing_tensor,
    row_range,
    wrong_buffer,
)

ZIP_SIGNATURE = b"PK\x03\x04"
_LEGACY_SIGNATURE = b"\x80\x02"
_UNREADABLE = 0x61  # flags of a member of a zip file that is encrypted, or a patch of another one
_MAX_NAME_CHARACTERS = 4096
_VISITS_PER_BYTE = 10
_ALWAYS_ALLOWED_VISITS = 10_000
_CHARACTERS_PER_BYTE = 100
_ALWAYS_ALLOWED_CHARACTERS = 10_000_000


def is_torch_file(path: str) -> bool:
    """Whether torch.save wrote a file, in the zip format or the older one."""
    with open(path, "rb") as file:
        start = file.read(9)
    # A safetensors file starts with the size of its JSON header, whose bytes may equal the start of a pickle.
    is_safetensors = start[4:] == b"\0\0\0\0{"
    return start.startswith(ZIP_SIGNATURE) or (start.startswith(_LEGACY_SIGNATURE) and not is_safetensors)


@dataclass(frozen=True)
class Leaf:
    """A tensor's placeholder in the nested content of a file."""

    name: str


class TorchReader(TensorReader):
    """The tensors of a file of torch.save; nested dicts give dotted names.

    Raises:
        CheckpointError: If the file has the format before torch 1.6, or its pickle has more than plain tensors.
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
            self._check_members()
            pickles = [name for name in self._zip.namelist() if name.endswith("/data.pkl")]
            if len(pickles) != 1:
                raise CorruptCheckpointError(f"{self.path}: {len(pickles)} members called data.pkl; expected one")
            self._folder = pickles[0].removesuffix("data.pkl")
            with self._zip.open(pickles[0]) as stream:
                content = PlainTensors(stream, self.path).load()
            self._tensors: dict[str, StoredTensor] = {}
            # An object takes at least one byte of the pickle, except that references can repeat it.
            num_bytes = self._zip.getinfo(pickles[0]).file_size
            self._visits_left = _VISITS_PER_BYTE * num_bytes + _ALWAYS_ALLOWED_VISITS
            # Every object's name repeats the keys above it.
            self._characters_left = _CHARACTERS_PER_BYTE * num_bytes + _ALWAYS_ALLOWED_CHARACTERS
            # The content of the file, with a Leaf for each tensor.
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
            raise wrong_buffer(self, name, value.size, target.size)
        target[:] = value

    def read_slice(self, name: str, start: int, stop: int) -> np.ndarray[Any, Any]:
        start, stop = row_range(self, name, self._tensor(name).shape, start, stop)
        rows: np.ndarray[Any, Any] = self.read(name)[start:stop]
        return rows

    def chunks(self, name: str) -> Iterator[BytesLike]:
        yield as_bytes(self.read(name))

    def verify(self) -> int:
        try:
            damaged = self._zip.testzip()
        except OSError:
            raise
        except Exception as exc:  # a hostile or damaged header of a member can fail in any way
            raise CorruptCheckpointError(
                f"{self.path}: a member cannot be read: {str(exc) or type(exc).__name__}"
            ) from exc
        if damaged is not None:
            raise CorruptCheckpointError(f"{self.path}: {damaged} does not match its checksum")
        return sum(self.entry(name).num_bytes for name in self._tensors)

    def check_complete(self) -> None:
        for name in self._tensors:
            self._place(self._tensor(name).storage.member)

    def close(self) -> None:
        self._file.close()

    def _tensor(self, name: str) -> StoredTensor:
        if name not in self._tensors:
            raise missing_tensor(self, name)
        return self._tensors[name]

    def _place(self, member: str) -> tuple[int, int]:
        """Return the offset and the size [B] of a storage in the file."""
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

    def _check_members(self) -> None:
        """Refuse compression and members that share bytes, with which a small file could expand to a large one.

        Encrypted members and places outside of the file are refused, too.
        """
        members = self._zip.infolist()
        if compressed := [member.filename for member in members if member.compress_type != zipfile.ZIP_STORED]:
            raise CheckpointError(f"{self.path}: member {compressed[0]!r} is compressed, which torch.save never does")
        if len({member.filename for member in members}) != len(members):
            raise CorruptCheckpointError(f"{self.path}: two of its members have one name. Use another checkpoint.")
        if unreadable := [member.filename for member in members if member.flag_bits & _UNREADABLE]:
            raise CorruptCheckpointError(
                f"{self.path}: member {unreadable[0]!r} is encrypted or a patch, which torch.save never writes. "
                "Use another checkpoint."
            )
        file_bytes = os.fstat(self._file.fileno()).st_size
        if any(not 0 <= member.header_offset < file_bytes for member in members):
            raise CorruptCheckpointError(
                f"{self.path}: its zip directory does not fit the file. Use another checkpoint."
            )
        num_bytes = sum(member.file_size for member in members)
        if num_bytes > file_bytes:
            raise CorruptCheckpointError(
                f"{self.path}: its members have {num_bytes} bytes, more than the file. Use another checkpoint."
            )

    def _collect(self, content: Any, prefix: str) -> Any:
        self._visits_left -= 1
        self._characters_left -= len(prefix)
        if min(self._visits_left, self._characters_left) < 0 or len(prefix) > _MAX_NAME_CHARACTERS:
            raise CorruptCheckpointError(
                f"{self.path}: its lists and dicts refer to each other more often than a file of plain tensors needs"
            )
        if isinstance(content, StoredTensor):
            check_plain(content, f"{self.path}: tensor {prefix!r}")
            self._tensors[prefix] = content
            return Leaf(prefix)
        if isinstance(content, dict):
            start = f"{prefix}." if prefix else ""
            return {key: self._collect(value, f"{start}{key}") for key, value in content.items()}
        if isinstance(content, (list, tuple)):
            return type(content)(self._collect(value, f"{prefix}.{number}") for number, value in enumerate(content))
        return content
