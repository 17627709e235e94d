"""The weight store in a file: several checked reads at a time, and background writes in order for each weight."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from typing_extensions import override

from cerebras_tensorflow.errors import CerebrasError, CheckpointError, StoreError
from cerebras_tensorflow.graph.program import WeightSpec, dtype_from_name
from cerebras_tensorflow.runtime.host.disk_space import Need, check_space
from cerebras_tensorflow.runtime.host.memory import free_memory_bytes
from cerebras_tensorflow.runtime.weight_store.blocks import (
    BLOCK_BYTES,
    Blocks,
    DamagedBlock,
    Extent,
    MissingBlock,
    Placement,
    Scratch,
)
from cerebras_tensorflow.runtime.weight_store.buffers import (
    PAGE_BYTES,
    Buffers,
    Bytes,
    aligned_buffer,
    private_copy,
    up_to,
)
from cerebras_tensorflow.runtime.weight_store.failures import never_written
from cerebras_tensorflow.runtime.weight_store.folder import StoreFolder
from cerebras_tensorflow.runtime.weight_store.interface import WeightStore, as_bytes, row_bytes, shaped
from cerebras_tensorflow.runtime.weight_store.packing import PIECE_BYTES
from cerebras_tensorflow.runtime.weight_store.snapshot import Lifetime, StoreSnapshot
from cerebras_tensorflow.runtime.weight_store.traffic import Traffic
from cerebras_tensorflow.runtime.weight_store.write_queue import MAX_PENDING_BYTES, WriteQueue

logger = logging.getLogger(__name__)

_READERS = 4  # reads at a time
_WRITERS = 2
_STRIPE_BYTES = 4 << 20  # read by one reader at a time
_APART_BYTES = 2 << 20  # the most that the page cache keeps as one, at a multiple of its size
CACHED_SHARE = 0.5  # of free memory; a larger part of the store would evict itself from the page cache


class FileStore(WeightStore):
    """All weights in one file, each at a page boundary. The file is scratch: only checkpoints survive a run.

    A store that fits into half of free memory uses the page cache. Of a larger store, the cache would evict each page
    before its next use, and would cost a copy and a page fault for each page. So only the weights that a step reads
    most use it, as many as fit, and all others bypass it (O_DIRECT). The system takes this memory back if a program
    needs it.

    Args:
        specs: The weights.
        folder: Folder of the file, see folder.py. It is made if it is missing.
        max_pending_bytes: Queued bytes beyond which a write waits.
        is_direct: Whether to bypass the page cache with all weights, or with none. None: choose as above.
        reads: Bytes that a step reads of each weight. None: as many of all.
        beside: What else the run will write (checkpoints). The disk must have room for all of it.
        num_stores: Stores of the run on this machine. Each one takes an equal part of the free memory.

    Attributes:
        cached_bytes: Bytes of the weights that use the page cache.

    Raises:
        StoreError: If the folder's disk has less space than the weights need, or another run uses the folder.
    """

    def __init__(
        self,
        specs: Sequence[WeightSpec],
        folder: Path,
        max_pending_bytes: int = MAX_PENDING_BYTES,
        is_direct: bool | None = None,
        beside: Sequence[Need] = (),
        reads: Sequence[int] | None = None,
        num_stores: int = 1,
    ) -> None:
        super().__init__(specs)
        sizes = [up_to(spec.num_bytes, PAGE_BYTES) for spec in specs]
        total = sum(sizes)
        room = int(CACHED_SHARE * _free_memory_bytes() / num_stores) if is_direct is None else 0
        is_direct = total > room if is_direct is None else is_direct
        cached = _most_read(sizes, sizes if reads is None else reads, room) if is_direct else set()
        starts, total = _places(sizes, cached)
        self._folder = StoreFolder(Path(folder), total, is_direct, beside)
        path = str(self._folder.path)
        self.cached_bytes = sum(sizes[index] for index in cached) if self._folder.is_direct else total
        files = [self._folder.cached_file if index in cached else self._folder.file for index in range(len(specs))]
        self._traffic = Traffic()
        self._blocks = [
            Blocks(
                spec.num_bytes,
                (Extent(file, path, start), Extent(file, path, total + start)),
                self._traffic,
                dtype_from_name(spec.dtype).itemsize,
            )
            for spec, file, start in zip(specs, files, starts, strict=True)
        ]
        self._adopted: dict[str, int] = {}  # path of a checkpoint's file -> its descriptor
        self._buffers = Buffers()
        self._scratch = Scratch()
        self._lifetime = Lifetime(self._free)
        lanes = range(len(self.specs))  # one for each weight, because two writes of a weight may touch the same block
        self._writes = WriteQueue(
            specs, self._write_now, lanes, _WRITERS, max_pending_bytes, self._failure, "weight-store-write"
        )
        self._readers = ThreadPoolExecutor(_READERS, thread_name_prefix="weight-store-read")

    @property
    def is_direct(self) -> bool:
        """Whether reads and writes bypass the page cache, except for `cached_bytes` of weights."""
        return self._folder.is_direct

    @property
    def file_bytes(self) -> tuple[int, int]:
        """Bytes read from and written to files so far. Zeros of sparse weights are not moved."""
        return self._traffic.bytes_read, self._traffic.bytes_written

    @override
    def read_slice(self, index: int, start: int, stop: int) -> np.ndarray:
        spec = self.specs[index]
        size = row_bytes(spec)
        with self.moving("load", index, (stop - start) * size):
            values = self._read_bytes(index, start * size, stop * size)
        if values.ctypes.data % 64:
            values = private_copy(values)  # otherwise TensorFlow would copy them, into memory that is not reused
        return shaped(values, spec, stop - start)

    @override
    def read_rows(self, index: int, rows: np.ndarray) -> np.ndarray:
        self._check_rows(index, rows)
        spec = self.specs[index]
        size = row_bytes(spec)
        unique, inverse = np.unique(rows, return_inverse=True)
        values = np.empty((unique.size, *spec.shape[1:]), dtype_from_name(spec.dtype))
        flat = as_bytes(values).reshape(unique.size, size)
        if not values.size:
            return values[inverse.reshape(rows.shape)]
        with self.moving("gather", index, values.nbytes):
            for first, last in _clusters(unique, size):
                low = int(unique[first]) * size
                data = self._read_bytes(index, low, (int(unique[last - 1]) + 1) * size)
                flat[first:last] = data.reshape(-1, size)[unique[first:last] - unique[first]]
        return values[inverse.reshape(rows.shape)]

    @override
    def write_slice(self, index: int, start: int, value: np.ndarray) -> None:
        self._writes.put(index, start * row_bytes(self.specs[index]), as_bytes(np.ascontiguousarray(value)))

    @override
    def adopt(self, index: int, path: str | Path, offset: int, checksum: int | None) -> bool:
        self._writes.wait_for(index, 0, self.specs[index].num_bytes)
        name = str(path)
        try:
            if name not in self._adopted:
                self._adopted[name] = os.open(name, os.O_RDONLY | os.O_CLOEXEC)
            self._blocks[index].adopt(Extent(self._adopted[name], name, offset), checksum, self._scratch.piece)
        except OSError as error:
            raise CheckpointError(
                f"{name} cannot be read ({error.strerror or error}). Its disk may be at fault (dmesg): read it again, "
                "or start from an earlier checkpoint."
            ) from error
        return True

    @override
    def flush(self) -> None:
        self._writes.wait_for_all()
        self._failure.check()
        self._folder.warn_if_deleted()

    @override
    def snapshot(self) -> StoreSnapshot:
        self.flush()
        with self._lifetime.new_snapshot():
            needed = sum(blocks.padded_bytes for blocks in self._blocks if blocks.needs_reserve)
            check_space([Need("a snapshot of the weights", self._folder.folder, needed, "weight_store_dir")])
            try:
                held = [blocks.hold() for blocks in self._blocks]
            except OSError as error:
                self._release_all()
                raise self._folder.error("a snapshot", error, "kept in") from error
        return StoreSnapshot(
            lambda index: self._held_pieces(index, held[index]),
            lambda index: self._blocks[index].release(),
            self._end_snapshot,
        )

    @property
    @override
    def snapshot_bytes(self) -> int:
        return _STRIPE_BYTES

    @override
    def drop_cache(self) -> None:
        """Write everything to the disk and drop it from the page cache, so that the next reads come from the disk."""
        self.flush()
        os.fdatasync(self._folder.file)
        for file in (self._folder.file, *self._adopted.values()):
            os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)

    @override
    def close(self) -> None:
        self._writes.close()
        self._readers.shutdown(wait=True)
        self._lifetime.close()

    def _end_snapshot(self) -> None:
        self._release_all()
        self._lifetime.end_snapshot()

    def _release_all(self) -> None:
        for blocks in self._blocks:
            blocks.release()

    def _free(self) -> None:
        self._folder.close()
        for file in self._adopted.values():
            os.close(file)
        self._buffers.close()

    def _held_pieces(self, index: int, placement: Placement) -> Iterator[Bytes]:
        """Yield the bytes of a weight in a snapshot, in pieces that share one buffer."""
        spec, target = self.specs[index], aligned_buffer(_STRIPE_BYTES)
        for start in range(0, spec.num_bytes, _STRIPE_BYTES):
            stop = min(start + _STRIPE_BYTES, spec.num_bytes)
            self._read_stripe(index, start, stop, target, placement)
            yield target[: stop - start]

    def _read_bytes(self, index: int, start: int, stop: int) -> Bytes:
        """Return bytes of a weight, after comparing the checksum of each of their blocks."""
        self._writes.wait_for(index, start, stop)
        self._failure.check()
        blocks = self._blocks[index]
        first = start // BLOCK_BYTES * BLOCK_BYTES
        target = self._buffers.take(blocks.read_bytes(start, stop))
        cuts = range(first, stop, _STRIPE_BYTES)
        stripes = [(max(cut, start), min(cut + _STRIPE_BYTES, stop)) for cut in cuts]
        if len(stripes) == 1:
            self._read_stripe(index, start, stop, target)
        else:
            jobs = [
                self._readers.submit(self._read_stripe, index, low, high, target[cut - first :])
                for cut, (low, high) in zip(cuts, stripes, strict=True)
            ]
            for job in jobs:
                job.result()
        return target[start - first : stop - first]

    def _read_stripe(
        self, index: int, start: int, stop: int, target: Bytes, placement: Placement | None = None
    ) -> None:
        blocks = self._blocks[index]
        # A write of a neighbouring slice rewrites all of a pack that it shares with this one.
        low, high = start // PIECE_BYTES * PIECE_BYTES, up_to(stop, PIECE_BYTES)
        while True:
            version = blocks.version
            try:
                return blocks.read(start, stop, target, placement)
            except (DamagedBlock, MissingBlock) as error:
                # Such a write may be the reason: wait for it and read again.
                if self._writes.wait_for(index, low, high) or version != blocks.version:
                    continue
                if isinstance(error, MissingBlock):
                    raise never_written(self.specs[index]) from None
                raise self._failure.keep(self._explained(index, error, "read from")) from error
            except (EOFError, OSError) as error:
                raise self._failure.keep(self._explained(index, error, "read from")) from error

    def _write_now(self, index: int, start: int, data: Bytes) -> None:
        try:
            with self.moving("store", index, data.size):
                self._blocks[index].write(start, data, self._scratch.piece)
            self._folder.warn_if_deleted()
        except (DamagedBlock, EOFError, OSError) as error:
            raise self._explained(index, error, "written to") from error

    def _explained(self, index: int, error: DamagedBlock | EOFError | OSError, doing: str) -> StoreError:
        """Return the StoreError for an error of the file. `doing` completes a sentence, for example "written to"."""
        name = self.specs[index].name
        if isinstance(error, OSError):
            return self._folder.error(name, error, doing)
        if isinstance(error, EOFError):
            return StoreError(
                f"{name} ends early in the weight store: {error}. Another program truncated the file. Start again: "
                "the run goes on from the last checkpoint."
            )
        if error.path != str(self._folder.path):
            return StoreError(
                f"{name} is damaged in {error.path}, the checkpoint that this run started from: {error} have changed "
                f"since the start (checksum of block {error.block}). A run reads a weight from its checkpoint until "
                "the first update. The run stops before it trains on the damage. Another program changed the file, or "
                "its disk is at fault (dmesg). Start again: the run checks this checkpoint, and falls back to the one "
                "before it. Or restore the file from a copy first."
            )
        return StoreError(
            f"{name} is damaged in the weight store: {error} are not what was written (checksum of block "
            f"{error.block}). The run stops before it trains on them. The disk or memory of this machine is at "
            "fault: look at its log (dmesg), choose another disk with weight_store_dir, and start again. The "
            "run goes on from the last checkpoint."
        )


def _most_read(sizes: Sequence[int], reads: Sequence[int], room: int) -> set[int]:
    """Return the weights of which a step reads most for each byte, as many as have room.

    >>> sorted(_most_read([4, 4, 4, 2], [4, 8, 8, 2], 10))
    [1, 2, 3]
    """
    chosen = set()
    for index in sorted(range(len(sizes)), key=lambda index: -reads[index] / max(sizes[index], 1)):
        if sizes[index] <= room:
            chosen.add(index)
            room -= sizes[index]
    return chosen


def _places(sizes: Sequence[int], cached: Set[int]) -> tuple[list[int], int]:
    """Return the first byte of each weight in the file, and the bytes of all.

    What is in the page cache is apart from what bypasses it: the system caches up to _APART_BYTES at a time, and must
    not write old bytes of a neighbour back.

    >>> _places([4096, 4096, 8192], {1})
    ([2097152, 0, 2101248], 4194304)
    """
    starts, end = [0] * len(sizes), 0
    others = [index for index in range(len(sizes)) if index not in cached]
    apart = _APART_BYTES if cached and others else 1
    for group in (sorted(cached), others):
        end = up_to(end, apart)
        for index in group:
            starts[index], end = end, end + sizes[index]
    return starts, up_to(end, apart)


def _clusters(rows: np.ndarray, size: int) -> list[tuple[int, int]]:
    """Return (first, last + 1) of each run of ascending rows whose blocks touch. One read serves each run."""
    if not rows.size:
        return []
    low = rows * size // BLOCK_BYTES
    high = ((rows + 1) * size - 1) // BLOCK_BYTES
    cuts = (np.flatnonzero(low[1:] > high[:-1] + 1) + 1).tolist()
    return list(zip([0, *cuts], [*cuts, rows.size], strict=True))


def _free_memory_bytes() -> int:
    """Return the memory that the system can still give to programs and to its cache [B]."""
    try:
        return free_memory_bytes()
    except (OSError, CerebrasError):
        logger.debug("/proc/meminfo does not say how much memory is free, so the store bypasses the page cache")
        return 0
