"""The weight store that is a file: checked reads, several at a time; writes behind, in order for each weight."""

from __future__ import annotations

import itertools
import logging
import os
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import numpy as np

from cerebras_tensorflow.errors import CerebrasError, StoreError
from cerebras_tensorflow.graph.program import WeightSpec, dtype_from_name
from cerebras_tensorflow.runtime.host.disk_space import Need, check_space
from cerebras_tensorflow.runtime.host.memory import free_memory_bytes
from cerebras_tensorflow.runtime.weight_store.blocks import (
    BLOCK_BYTES,
    Blocks,
    Bytes,
    DamagedBlock,
    Extent,
    MissingBlock,
    Placement,
    Scratch,
)
from cerebras_tensorflow.runtime.weight_store.buffers import PAGE_BYTES, Buffers, aligned_buffer, private_copy, up_to
from cerebras_tensorflow.runtime.weight_store.folder import StoreFolder
from cerebras_tensorflow.runtime.weight_store.interface import (
    WeightStore,
    never_written,
    num_rows,
    row_bytes,
    unexpected,
)
from cerebras_tensorflow.runtime.weight_store.snapshot import StoreSnapshot

logger = logging.getLogger(__name__)

_READERS = 4  # requests in flight for one weight
_WRITERS = 2
_STRIPE_BYTES = 4 << 20  # of a weight, that one reader takes
_DIRECT_SHARE = 0.5  # of the free memory; a store beyond it would push itself out of the page cache


class _Write:
    """A value on its way to the file."""

    def __init__(self, start: int, data: Bytes) -> None:
        self.start, self.stop, self.data = start, start + data.size, data
        self.done: Future[None] = Future()


class FileStore(WeightStore):
    """All weights in one file, each at a page boundary. The file is scratch: a checkpoint is what survives a run.

    A store that fits into half of the free memory goes through the page cache, a larger one past it (O_DIRECT): the
    cache would then cost a copy and a page fault for each page and hold none of them long enough to be of use.

    Args:
        specs: The weights.
        folder: Where the file goes, see folder.py; made if it is missing.
        max_pending_bytes: Bytes of values on their way to the file before a write has to wait.
        is_direct: Whether to go past the page cache; None: as above.
        beside: What else the run is going to write (checkpoints), so that all of it has room.

    Raises:
        StoreError: If the folder's disk has less space than the weights need, or another run uses the folder.
    """

    def __init__(
        self,
        specs: Sequence[WeightSpec],
        folder: Path,
        max_pending_bytes: int = 64_000_000,
        is_direct: bool | None = None,
        beside: Sequence[Need] = (),
    ) -> None:
        super().__init__(specs)
        sizes = [up_to(spec.num_bytes, PAGE_BYTES) for spec in specs]
        total = sum(sizes)
        if is_direct is None:
            is_direct = total > _DIRECT_SHARE * _free_memory_bytes()
        self._folder = StoreFolder(Path(folder), total, is_direct, beside)
        file, path = self._folder.file, str(self._folder.path)
        starts = itertools.accumulate(sizes, initial=0)
        self._blocks = [
            Blocks(spec.num_bytes, (Extent(file, path, start), Extent(file, path, total + start)))
            for spec, start in zip(specs, starts, strict=False)
        ]
        self._snapshot: _FileSnapshot | None = None
        self._is_closed = False
        self._adopted: dict[str, int] = {}  # files of checkpoints, by path
        self._buffers = Buffers()
        self._scratch = Scratch()
        self._max_pending_bytes = max_pending_bytes
        self._pending: dict[int, deque[_Write]] = {}
        self._pending_bytes = 0
        self._failure: StoreError | None = None
        self._changed = threading.Condition(threading.RLock())
        self._writers = ThreadPoolExecutor(_WRITERS, thread_name_prefix="weight-store-write")
        self._readers = ThreadPoolExecutor(_READERS, thread_name_prefix="weight-store-read")

    @property
    def is_direct(self) -> bool:
        """Whether reads and writes go past the page cache."""
        return self._folder.is_direct

    def read(self, index: int) -> np.ndarray:
        return self.read_slice(index, 0, num_rows(self.specs[index]))

    def read_private(self, index: int) -> np.ndarray:
        return self.read(index)

    def read_slice(self, index: int, start: int, stop: int) -> np.ndarray:
        spec = self.specs[index]
        size = row_bytes(spec)
        with self._moving("load", index, (stop - start) * size):
            values = self._read_bytes(index, start * size, stop * size)
        if values.ctypes.data % 64:
            values = private_copy(values)  # TensorFlow would copy it too, into memory that is not reused
        shape = (stop - start, *spec.shape[1:]) if spec.shape else ()
        return values.view(dtype_from_name(spec.dtype)).reshape(shape)

    def read_rows(self, index: int, rows: np.ndarray) -> np.ndarray:
        self._check_rows(index, rows)
        spec = self.specs[index]
        size = row_bytes(spec)
        unique, inverse = np.unique(rows, return_inverse=True)
        values = np.empty((unique.size, *spec.shape[1:]), dtype_from_name(spec.dtype))
        flat = values.reshape(-1).view(np.uint8).reshape(unique.size, size)
        with self._moving("gather", index, values.nbytes):
            for first, last in _clusters(unique, size):
                low = int(unique[first]) * size
                data = self._read_bytes(index, low, (int(unique[last - 1]) + 1) * size)
                flat[first:last] = data.reshape(-1, size)[unique[first:last] - unique[first]]
        return values[inverse.reshape(rows.shape)]

    def write(self, index: int, value: np.ndarray) -> None:
        self._write_at(index, 0, value)

    def write_slice(self, index: int, start: int, value: np.ndarray) -> None:
        self._write_at(index, start * row_bytes(self.specs[index]), value)

    def adopt(self, index: int, path: str | Path, offset: int, checksum: int | None) -> bool:
        self._wait_for(index, 0, self.specs[index].num_bytes)
        name = str(path)
        if name not in self._adopted:
            self._adopted[name] = os.open(name, os.O_RDONLY | os.O_CLOEXEC)
        self._blocks[index].adopt(Extent(self._adopted[name], name, offset), checksum, self._scratch.piece)
        return True

    def flush(self) -> None:
        for index, spec in enumerate(self.specs):
            self._wait_for(index, 0, spec.num_bytes)
        self._raise_failure()
        self._folder.warn_if_deleted()

    def snapshot(self) -> StoreSnapshot:
        self.flush()
        if self._snapshot is not None:
            raise StoreError("the snapshot before has not been closed")
        needed = sum(blocks.padded_bytes for blocks in self._blocks if blocks.needs_reserve)
        check_space([Need("a snapshot of the weights", self._folder.folder, needed, "weight_store_dir")])
        try:
            held = [blocks.hold() for blocks in self._blocks]
        except OSError as error:
            for blocks in self._blocks:
                blocks.release()
            raise self._folder.error("a snapshot", error, "kept in") from error
        self._snapshot = _FileSnapshot(self, held)
        return self._snapshot

    @property
    def snapshot_bytes(self) -> int:
        return _STRIPE_BYTES

    def read_held(self, index: int, placement: Placement) -> Iterator[Bytes]:
        """Yield a weight's bytes as a snapshot has them, in pieces that share one buffer."""
        spec, target = self.specs[index], aligned_buffer(_STRIPE_BYTES)
        for start in range(0, spec.num_bytes, _STRIPE_BYTES):
            stop = min(start + _STRIPE_BYTES, spec.num_bytes)
            self._read_stripe(index, start, stop, target, placement)
            yield target[: stop - start]

    def release(self, index: int) -> None:
        """End the snapshot's hold on a weight."""
        self._blocks[index].release()

    def end_snapshot(self) -> None:
        """End the snapshot's hold on all weights; a store that was closed meanwhile goes now."""
        for blocks in self._blocks:
            blocks.release()
        with self._changed:
            self._snapshot = None
            if self._is_closed:
                self._close_files()

    def drop_cache(self) -> None:
        """Write everything to the disk and let the system forget its copies, so that the next reads are cold."""
        self.flush()
        os.fdatasync(self._folder.file)
        for file in (self._folder.file, *self._adopted.values()):
            os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)

    def close(self) -> None:
        self._writers.shutdown(wait=True)
        self._readers.shutdown(wait=True)
        with self._changed:
            self._is_closed = True
            if self._snapshot is None:
                self._close_files()

    def _close_files(self) -> None:
        self._folder.close()
        for file in self._adopted.values():
            os.close(file)
        self._buffers.close()

    def _read_bytes(self, index: int, start: int, stop: int) -> Bytes:
        """Return bytes of a weight, each block of them checked."""
        self._wait_for(index, start, stop)
        self._raise_failure()
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
        blocks, spec = self._blocks[index], self.specs[index]
        first, last = blocks.span(start, stop)
        try:
            while True:
                version = blocks.version
                try:
                    return blocks.read(start, stop, target, placement)
                except (DamagedBlock, MissingBlock):
                    # A neighbouring slice's write may be at work in a block that the two share: look again after it.
                    if not self._wait_for(index, first * BLOCK_BYTES, last * BLOCK_BYTES) and version == blocks.version:
                        raise
        except DamagedBlock as error:
            raise self._fail(self._damaged(spec.name, error)) from error
        except MissingBlock:
            raise never_written(spec) from None
        except EOFError as error:
            raise self._fail(_cut_short(spec.name, error)) from error
        except OSError as error:
            raise self._fail(self._folder.error(spec.name, error, "read from")) from error

    def _write_at(self, index: int, start: int, value: np.ndarray) -> None:
        write = _Write(start, np.ascontiguousarray(value).reshape(-1).view(np.uint8))
        size = write.data.size
        with self._changed:
            self._changed.wait_for(
                lambda: self._pending_bytes == 0 or self._pending_bytes + size <= self._max_pending_bytes
            )
            self._raise_failure()
            queue = self._pending.setdefault(index, deque())
            if not queue:
                self._writers.submit(self._write_behind, index)  # begins when this lock is free
            queue.append(write)
            self._pending_bytes += size

    def _write_behind(self, index: int) -> None:
        """Write what is pending of one weight, in its order."""
        while True:
            with self._changed:
                queue = self._pending[index]
                if not queue:
                    return
                write = queue[0]
            try:
                self._write_now(index, write)
            except BaseException as error:  # nobody asks for a result of this thread: the next use of the store tells
                self._fail(unexpected(self.specs[index], error))
            with self._changed:
                queue.popleft()
                self._pending_bytes -= write.data.size
                write.done.set_result(None)
                self._changed.notify_all()
                if not queue:
                    return

    def _write_now(self, index: int, write: _Write) -> None:
        try:
            with self._moving("store", index, write.data.size):
                self._blocks[index].write(write.start, write.data, self._scratch.piece)
            self._folder.warn_if_deleted()
        except OSError as error:
            self._fail(self._folder.error(self.specs[index].name, error, "written to"))
        except DamagedBlock as error:
            self._fail(self._damaged(self.specs[index].name, error))
        except EOFError as error:
            self._fail(_cut_short(self.specs[index].name, error))

    def _wait_for(self, index: int, start: int, stop: int) -> bool:
        """Wait for all writes so far to these bytes of a weight; return whether there were any."""
        with self._changed:
            writes = [write for write in self._pending.get(index, ()) if write.start < stop and start < write.stop]
        for write in writes:
            write.done.result()
        return bool(writes)

    def _damaged(self, name: str, error: DamagedBlock) -> StoreError:
        if error.path != str(self._folder.path):
            return StoreError(
                f"{name} is damaged in {error.path}, the checkpoint that this run started from and reads the weight "
                f"from until its first update: {error} are not what they were at the start (checksum of block "
                f"{error.block}). The run stops before it trains on them. Somebody has changed the file, or its disk "
                "is at fault (dmesg). Start again: the checkpoint is checked, and the one before it used; or restore "
                "the file from a copy first."
            )
        return StoreError(
            f"{name} is damaged in the weight store: {error} are not what was written (checksum of block "
            f"{error.block}). The run stops before it trains on them. Disk or memory of this machine is at "
            "fault: look at its log (dmesg), choose another disk with weight_store_dir, and start again; the "
            "run goes on from the last checkpoint."
        )

    def _fail(self, error: StoreError) -> StoreError:
        """Let every use from now on raise this error: what is in the store is not what it should be."""
        with self._changed:
            self._failure = self._failure or error
            return self._failure

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure


class _FileSnapshot(StoreSnapshot):
    """The placements that the weights had; the store leaves those blocks alone until they are released."""

    def __init__(self, store: FileStore, held: Sequence[Placement]) -> None:
        self._store = store
        self._held = tuple(held)
        self._is_closed = False

    def pieces(self, index: int) -> Iterator[np.ndarray]:
        return self._store.read_held(index, self._held[index])

    def release(self, index: int) -> None:
        self._store.release(index)

    def close(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            self._store.end_snapshot()


def _cut_short(name: str, error: EOFError) -> StoreError:
    return StoreError(
        f"{name} ends early in the weight store: {error}. Somebody has truncated the file; start again; the run goes "
        "on from the last checkpoint."
    )


def _clusters(rows: np.ndarray, size: int) -> list[tuple[int, int]]:
    """Return (first, last + 1) of runs of ascending rows whose blocks touch, which one read serves."""
    if not rows.size:
        return []
    low = rows * size // BLOCK_BYTES
    high = ((rows + 1) * size - 1) // BLOCK_BYTES
    cuts = (np.flatnonzero(low[1:] > high[:-1] + 1) + 1).tolist()
    return list(zip([0, *cuts], [*cuts, rows.size], strict=True))


def _free_memory_bytes() -> int:
    """Bytes of memory that the system can still give to programs and to its cache."""
    try:
        return free_memory_bytes()
    except (OSError, CerebrasError):
        logger.debug("/proc/meminfo does not say how much memory is free: the store goes past the page cache")
        return 0
