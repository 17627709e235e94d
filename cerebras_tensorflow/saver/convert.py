"""Copying a checkpoint into another format in bounded memory, tensor by tensor, piece by piece."""

from __future__ import annotations

import contextlib
import fnmatch
import os
import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from cerebras_tensorflow.errors import CheckpointError, CorruptCheckpointError
from cerebras_tensorflow.locations import ObjectLocation, object_location
from cerebras_tensorflow.saver.checkpoint_reader import open_checkpoint
from cerebras_tensorflow.saver.files import range_copy
from cerebras_tensorflow.saver.files.range_copy import RangeCopier
from cerebras_tensorflow.saver.inspection import aligned
from cerebras_tensorflow.saver.interface import BytesLike, TensorReader, TensorWriter, as_bytes, flat_view
from cerebras_tensorflow.saver.model_dir import retention
from cerebras_tensorflow.saver.names import files_of
from cerebras_tensorflow.saver.sharding import Layout

_AHEAD = 3


@dataclass(frozen=True)
class Selection:
    """The tensors to copy, and the types to store them as.

    Attributes:
        include: Shell patterns of the names to copy; empty means all.
        exclude: Shell patterns of the names to leave out.
        dtype_map: Pairs (name pattern or type name, new type); the first that fits a tensor's name or type is used.
    """

    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    dtype_map: tuple[tuple[str, np.dtype[Any]], ...] = ()

    def names(self, reader: TensorReader) -> list[str]:
        """Return the names to copy.

        Raises:
            ValueError: If a pattern fits no name (usually a typo), or no name is left.
        """
        names = reader.names()
        for pattern in (*self.include, *self.exclude):
            if not any(fnmatch.fnmatchcase(name, pattern) for name in names):
                raise ValueError(f"{reader.path}: no tensor fits the pattern {pattern!r}")
        if self.include:
            names = [name for name in names if any(fnmatch.fnmatchcase(name, pattern) for pattern in self.include)]
        chosen = [name for name in names if not any(fnmatch.fnmatchcase(name, pattern) for pattern in self.exclude)]
        if self.exclude and not chosen:
            raise ValueError(f"{reader.path}: the patterns leave no tensor; exclude fewer")
        return chosen

    def dtype(self, name: str, dtype: np.dtype[Any]) -> np.dtype[Any]:
        """Return the type under which a tensor is written."""
        for pattern, new in self.dtype_map:
            if pattern == dtype.name or fnmatch.fnmatchcase(name, pattern):
                return new
        return dtype


@dataclass(frozen=True)
class Report:
    """The result of a copy.

    Attributes:
        num_bytes: Size of the values read [B].
        skipped: Reason for each object of the source that is not a tensor, by name.
    """

    num_tensors: int
    num_bytes: int
    skipped: dict[str, str] = field(default_factory=dict)


def copy(
    reader: TensorReader,
    writer: TensorWriter,
    selection: Selection | None = None,
    progress: Callable[[int], None] | None = None,
    jobs: int = 2,
) -> Report:
    """Copy tensors from an open reader to an open writer; the caller commits.

    Args:
        reader: Source; every checksum is compared.
        writer: Target.
        selection: What to copy; all by default.
        progress: Called with the number of bytes of each piece.
        jobs: Threads that copy values whose bytes are the same in both formats. If above 1, one more thread reads other
            large values ahead, unless the reader does that.

    Raises:
        CheckpointError, ValueError: As reader and writer.
    """
    if selection is None:
        reader.check_places()
    selection = selection or Selection()
    num_bytes = 0
    names = selection.names(reader)
    reader.will_read(names)
    with RangeCopier(jobs, progress) as copier:
        for name in names:
            entry = reader.entry(name)
            num_bytes += entry.num_bytes
            dtype = selection.dtype(name, entry.dtype)
            if dtype == entry.dtype and entry.num_bytes >= range_copy.MIN_BYTES:
                where = reader.extent(name)
                reservation = None if where is None else writer.reserve(name, dtype, entry.shape, where.crc)
                if where is not None and reservation is not None:
                    copier.copy(name, where, entry.num_bytes, reservation)
                    continue
            if entry.dtype.kind == "O":
                writer.add(name, reader.read(name))
                if progress is not None:
                    progress(entry.num_bytes)
                continue
            pieces: Iterator[BytesLike] = reader.chunks(name)
            if jobs > 1 and entry.num_bytes > 16 << 20 and not reader.reads_ahead:
                pieces = _ahead(pieces)
            if dtype != entry.dtype:
                pieces = _cast(pieces, entry.dtype, dtype)
            writer.add_chunks(
                name, dtype, entry.shape, _counted(pieces, dtype.itemsize, entry.dtype.itemsize, progress)
            )
    return Report(len(names), num_bytes, dict(getattr(reader, "skipped", {})))


def total_bytes(reader: TensorReader, selection: Selection) -> int:
    """Return the size of the values that `copy` would read [B]."""
    return sum(reader.entry(name).num_bytes for name in selection.names(reader))


def check_layout(reader: TensorReader, selection: Selection, layout: Layout) -> None:
    """Check that a layout gives every tensor exactly one shard, before anything is written."""
    layout.check(selection.names(reader))


def check_paths(source: str, target: str, force: bool) -> bool:
    """Check that a conversion does not overwrite its source, nor another checkpoint without `force`.

    Returns:
        Whether the target exists and will be replaced.

    Raises:
        CheckpointError: If it would overwrite either.
    """
    location = object_location(target)
    if location is not None:
        return _check_objects(source, location, force)
    source_files = {os.path.realpath(file) for file in files_of(source)}
    target_files = [file for file in files_of(target) if os.path.exists(file)]
    if os.path.realpath(source) == os.path.realpath(target) or any(
        os.path.realpath(file) in source_files for file in target_files
    ):
        raise CheckpointError(f"{target}: source and target are the same checkpoint; choose another target")
    if target_files and not force:
        raise CheckpointError(f"{target_files[0]}: exists. Use --force to replace it, or choose another target.")
    return bool(target_files)


def _check_objects(source: str, target: ObjectLocation, force: bool) -> bool:
    from cerebras_tensorflow.saver.objects.writer import exists

    if source == str(target):
        raise CheckpointError(f"{target}: source and target are the same checkpoint; choose another target")
    is_there = exists(target)
    if is_there and not force:
        raise CheckpointError(f"{target}: exists. Use --force to replace it, or choose another target.")
    return is_there


def verify(source: TensorReader, target: str, selection: Selection) -> None:
    """Read a copy back and compare it with its source; remove it if it is damaged or differs.

    Args:
        source: The source of the copy.
        target: Path of the copy.
        selection: The tensors that were copied. If it changes types, only the copy's checksums are compared.

    Raises:
        CorruptCheckpointError: If the copy is damaged or differs; it is removed.
        CheckpointError: If either cannot be read, or the source is damaged; the copy stays.
    """
    try:
        fault = _fault_of_copy(source, target, selection)
    except CheckpointError as error:
        raise CheckpointError(
            f"{error}. {target} is written, but not verified, and stays; verify it with: "
            f"cs-checkpoint --verify {target}"
        ) from error
    if fault is None:
        return
    location = object_location(target)
    if location is None:
        retention.remove(target)
    else:
        from cerebras_tensorflow.saver.objects import writer

        writer.remove(location)
    raise CorruptCheckpointError(
        f"{fault}. {target} was removed; convert again; if it fails again, check disk and memory"
    ) from fault


def _fault_of_copy(source: TensorReader, target: str, selection: Selection) -> CorruptCheckpointError | None:
    """Return what is wrong with a copy; raise what keeps us from knowing."""
    with contextlib.ExitStack() as stack:
        try:
            copied = stack.enter_context(open_source(target))
            copied.verify()
        except CorruptCheckpointError as error:
            return error
        # Damage that is found from here on is the source's.
        name = None if selection.dtype_map else _first_difference(source, copied, selection.names(source))
        if name is None:
            return None
        return CorruptCheckpointError(f"{copied.path}: tensor {name!r} differs from the one in {source.path}")


def _first_difference(first: TensorReader, second: TensorReader, names: Sequence[str]) -> str | None:
    """Return the first name whose values differ in two checkpoints, or None; in bounded memory."""
    for name in names:
        if name not in second:
            return name
        left, right = first.entry(name), second.entry(name)
        same = (left.dtype, left.shape) == (right.dtype, right.shape)
        if same and left.dtype.kind == "O":
            same = first.read(name).tolist() == second.read(name).tolist()
        elif same:
            # Read all pieces: the checksums come last, and may say that the first checkpoint is at fault.
            for pair in aligned(first.chunks(name), second.chunks(name)):
                same = np.array_equal(*pair) and same
        if not same:
            return name
    return None


def _counted(
    pieces: Iterator[BytesLike], itemsize: int, source_itemsize: int, progress: Callable[[int], None] | None
) -> Iterator[BytesLike]:
    for piece in pieces:
        yield piece
        if progress is not None:
            progress(flat_view(piece).size // itemsize * source_itemsize)


def _cast(pieces: Iterator[BytesLike], old: np.dtype[Any], new: np.dtype[Any]) -> Iterator[BytesLike]:
    rest = np.empty(0, np.uint8)
    for piece in pieces:
        view = flat_view(piece)
        if rest.size:
            view = np.concatenate([rest, view])
        whole = view.size - view.size % old.itemsize
        yield as_bytes(view[:whole].view(old).astype(new))
        rest = view[whole:].copy()


def _ahead(pieces: Iterator[BytesLike]) -> Iterator[BytesLike]:
    """Yield pieces that a second thread reads ahead, a few at a time to bound the memory."""
    free: queue.Queue[np.ndarray[Any, Any]] = queue.Queue()
    filled: queue.Queue[tuple[np.ndarray[Any, Any], int] | BaseException | None] = queue.Queue()
    is_stopped = threading.Event()
    for _ in range(_AHEAD):
        free.put(np.empty(0, np.uint8))

    def run() -> None:
        try:
            for piece in pieces:
                view = flat_view(piece)
                buffer = free.get()
                if is_stopped.is_set():
                    return
                if buffer.size < view.size:
                    buffer = np.empty(view.size, np.uint8)
                buffer[: view.size] = view
                filled.put((buffer, view.size))
            filled.put(None)
        except BaseException as exc:  # noqa: BLE001 (the other thread raises it)
            filled.put(exc)

    thread = threading.Thread(target=run, name="checkpoint-reader", daemon=True)
    thread.start()
    try:
        while (item := filled.get()) is not None:
            if isinstance(item, BaseException):
                raise item
            buffer, size = item
            yield buffer[:size]
            free.put(buffer)
    finally:
        is_stopped.set()
        free.put(np.empty(0, np.uint8))
        thread.join()


def open_source(path: str, accept_changed: bool = False) -> TensorReader:
    """Open the source of a conversion, as `open_checkpoint`."""
    return open_checkpoint(path, accept_changed)
