"""Overwriting single weights of an HDF5 checkpoint in place, so that a crash leaves the old or the new values.

The new bytes first go to a journal beside the file. Once the journal is durable, it is applied and removed. A
reader of ours that opens the file and finds a journal applies it first. Applying a journal twice is harmless.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
import os
import stat
from collections.abc import Mapping, Sequence
from typing import Any, BinaryIO

import numpy as np

from cerebras_tensorflow import files
from cerebras_tensorflow.errors import CheckpointError, CorruptCheckpointError
from cerebras_tensorflow.locations import local_path
from cerebras_tensorflow.saver.files import mapped
from cerebras_tensorflow.saver.files.atomic import PartialFile, reporting, write_all
from cerebras_tensorflow.saver.files.checksum import crc32c
from cerebras_tensorflow.saver.files.writeback import pwrite_all
from cerebras_tensorflow.saver.hdf5 import format as h5_format
from cerebras_tensorflow.saver.hdf5 import index as h5_index
from cerebras_tensorflow.saver.hdf5.index import NOT_CONTIGUOUS, H5Index, H5Record
from cerebras_tensorflow.saver.hdf5.reader import read_index
from cerebras_tensorflow.saver.interface import as_bytes
from cerebras_tensorflow.saver.names import shards_of

logger = logging.getLogger(__name__)

_SUFFIX = ".journal"
_PIECE_BYTES = 4 << 20
_MAX_HEADER_BYTES = 64 << 20


@dataclasses.dataclass(frozen=True)
class _Write:
    """A run of bytes to copy from a position in the journal to an offset in a checkpoint's file."""

    position: int
    offset: int
    size: int


def journal_path(path: str) -> str:
    """Return the path of a checkpoint's journal."""
    folder, name = os.path.split(os.path.abspath(path))
    return os.path.join(folder, f".{name}{_SUFFIX}")


def update(path: str | os.PathLike[str], tensors: Mapping[str, Any]) -> None:
    """Replace the values of stored tensors; either all are replaced or none.

    Args:
        path: An uncompressed checkpoint of ours; one file or shards.
        tensors: New values by name, with the stored types and shapes.

    Raises:
        KeyError: If a name is not stored.
        ValueError: If a value has another type or shape.
        CheckpointError: If the checkpoint is not ours, is compressed, or is being written by another process.
    """
    path = os.path.abspath(local_path(path))
    lock = PartialFile(path)
    try:
        replay(path)
        index = _own_index(path)
        arrays = {name: _fitting(path, index, name, value) for name, value in tensors.items()}
        _write_journal(path, index, arrays)
        try:
            replay(path)
        except CheckpointError as error:
            # File systems that never write in place, such as btrfs, need free space even for an overwrite.
            raise CheckpointError(
                f"{error} The new values are safe in {journal_path(path)}; opening the checkpoint finishes the update."
            ) from error
    finally:
        lock.discard()


def recover(path: str) -> None:
    """Finish an interrupted update, if there is one.

    Raises:
        CheckpointError: If the update is still running, or the file cannot be written.
    """
    if os.path.exists(journal_path(path)):
        lock = PartialFile(path)
        try:
            replay(path)
        finally:
            lock.discard()


def replay(path: str) -> None:
    """Apply a checkpoint's journal and remove it. The caller holds the checkpoint's lock."""
    journal = journal_path(path)
    if not os.path.exists(journal):
        return
    folder = os.path.dirname(journal)
    if os.path.exists(path):
        with reporting(path), files.open_regular(journal, os.O_NOFOLLOW) as file:
            try:
                writes = _read_header(file, path)
            except (ValueError, KeyError, TypeError, RecursionError, OverflowError) as exc:
                raise CorruptCheckpointError(f"{journal}: damaged: {exc}. Use another checkpoint.") from exc
            by_file: dict[str, list[_Write]] = {}
            position = file.tell()
            for name, offset, size in writes:
                by_file.setdefault(name, []).append(_Write(position, offset, size))
                position += size
            for name in sorted(by_file):
                _apply(file.fileno(), by_file[name], os.path.join(folder, name))
    with reporting(path), contextlib.suppress(FileNotFoundError):
        os.unlink(journal)
        files.sync_folder(folder)


def _read_header(journal: BinaryIO, path: str) -> list[tuple[str, int, int]]:
    """Return (file, offset, size) of each write, in the order in which their bytes follow the header.

    A journal may come from elsewhere together with its checkpoint, so it must not change other files or take long.

    Raises:
        ValueError: If the journal does not match the checkpoint's files.
    """
    header = json.loads(journal.readline(_MAX_HEADER_BYTES))
    writes = [(str(name), int(offset), int(size)) for name, offset, size in header["writes"]]
    sizes = {os.path.basename(file): os.path.getsize(file) for file in (path, *shards_of(path))}
    if strange := {name for name, _, _ in writes} - set(sizes):
        raise ValueError(f"it writes to {', '.join(sorted(strange))}, not a file of this checkpoint")
    for name, offset, size in writes:
        if size < 0 or not 0 <= offset <= sizes[name]:
            raise ValueError(f"it writes {size} bytes at byte {offset} of {name}, which has {sizes[name]}")
    held = os.fstat(journal.fileno()).st_size - journal.tell()
    if sum(size for _, _, size in writes) != held:
        raise ValueError(f"it holds {held} bytes of values, but its header lists a different number")
    return writes


def _own_index(path: str) -> H5Index:
    index = read_index(path)
    if index is None:
        raise CheckpointError(f"{path}: has no index of ours, so it cannot be updated in place; convert it first")
    return index


def _fitting(path: str, index: H5Index, name: str, value: Any) -> np.ndarray[Any, Any]:
    record = index.records.get(name)
    if record is None:
        raise KeyError(f"{path}: no tensor {name!r}; an update replaces values and adds none")
    if record.offset == NOT_CONTIGUOUS:
        raise CheckpointError(
            f"{path}: tensor {name!r} is compressed, so it cannot be updated in place; save a new checkpoint"
        )
    array = np.asarray(value)
    if h5_format.type_name(array.dtype) != record.type_name or array.shape != record.shape:
        raise ValueError(
            f"{path}: tensor {name!r} is {record.type_name} {record.shape}, the new value "
            f"{h5_format.type_name(array.dtype)} {array.shape}"
        )
    if record.type_name == h5_format.STRING_TYPE:
        raise CheckpointError(f"{path}: tensor {name!r} holds strings, whose size can change; save a new checkpoint")
    return array


def _write_journal(path: str, index: H5Index, arrays: Mapping[str, np.ndarray[Any, Any]]) -> None:
    folder, main = os.path.split(path)
    contents = {name: as_bytes(array) for name, array in arrays.items()}
    changed = {
        name: dataclasses.replace(index.records[name], crc=crc32c(content)) for name, content in contents.items()
    }
    indexes = {main: dataclasses.replace(index, records=index.records | changed)}
    for shard in sorted({record.shard for record in changed.values()}) if index.shards else ():
        file = index.shards[shard]
        own = _own_index(os.path.join(folder, file))
        mine = {n: dataclasses.replace(r, shard=0) for n, r in changed.items() if r.shard == shard}
        indexes[file] = dataclasses.replace(own, records=own.records | mine)
    writes: list[tuple[str, int, np.ndarray[Any, Any] | bytes]] = [
        (_file_of(index, main, changed[name]), changed[name].offset, content) for name, content in contents.items()
    ]
    writes += [(file, new.end, h5_index.encode(new)) for file, new in indexes.items()]
    header = {"writes": [[file, offset, len(content)] for file, offset, content in writes]}
    partial = PartialFile(journal_path(path))
    try:
        with reporting(path):
            write_all(partial.fd, json.dumps(header).encode() + b"\n")
            for _, _, content in writes:
                write_all(partial.fd, content if isinstance(content, bytes) else content.data)
        partial.commit()
    finally:
        partial.discard()


def _file_of(index: H5Index, main: str, record: H5Record) -> str:
    return index.shards[record.shard] if index.shards else main


def _apply(journal: int, writes: Sequence[_Write], target: str) -> None:
    """Apply a journal's writes to a file, durably."""
    # O_NOFOLLOW: a link in a folder from elsewhere must not redirect the journal to another file.
    fd = os.open(target, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        with mapped.changing(fd, [(write.offset, write.size) for write in writes]) as is_free:
            if is_free:
                _write(journal, writes, fd)
                files.flush(fd)
            else:
                logger.info("%s: another process has it mapped, so a changed copy replaces it", target)
                _replace(journal, writes, fd, target)
    finally:
        os.close(fd)


def _replace(journal: int, writes: Sequence[_Write], old: int, target: str) -> None:
    partial = PartialFile(f"{target}.changed")
    try:
        status = os.fstat(old)
        os.fchmod(partial.fd, stat.S_IMODE(status.st_mode))
        _write(old, [_Write(0, 0, status.st_size)], partial.fd)
        _write(journal, writes, partial.fd)
        partial.commit(target)
    finally:
        partial.discard()


def _write(source: int, writes: Sequence[_Write], target: int) -> None:
    for write in writes:
        for done in range(0, write.size, _PIECE_BYTES):
            piece = os.pread(source, min(_PIECE_BYTES, write.size - done), write.position + done)
            pwrite_all(target, memoryview(piece), write.offset + done)
