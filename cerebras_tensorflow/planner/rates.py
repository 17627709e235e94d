"""Measures the speed of this machine in a second or two: matrix products, memory, and one disk."""

from __future__ import annotations

import mmap
import os
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from cerebras_tensorflow.errors import StoreError
from cerebras_tensorflow.units import format_bytes

_DISK_BYTES = 256 << 20
_PIECE_BYTES = 4 << 20
_PRODUCT_SIZE = 1024
_MEMORY_BYTES = 64 << 20
_LEAST_S = 0.4


@dataclass(frozen=True)
class Rates:
    """Measured rates.

    Attributes:
        flops_per_s: Floating-point operations in float32 matrix products.
        memory_bytes_per_s: Bytes read and written by element-wise ops.
        disk_read_bytes_per_s, disk_write_bytes_per_s: Sequential, without the page cache if the file system allows it.
    """

    flops_per_s: float
    memory_bytes_per_s: float
    disk_read_bytes_per_s: float
    disk_write_bytes_per_s: float

    def text(self) -> str:
        """Return the rates in words."""
        return (
            f"{self.flops_per_s / 1e9:.0f} GFLOP/s in float32 matrix products, "
            f"{format_bytes(self.memory_bytes_per_s)}/s element-wise, disk "
            f"{format_bytes(self.disk_read_bytes_per_s)}/s read and {format_bytes(self.disk_write_bytes_per_s)}/s write"
        )


def measure(folder: Path) -> Rates:
    """Measure the rates.

    Args:
        folder: An existing folder on the disk of the weight store.

    Raises:
        StoreError: If nothing can be written there.
    """
    read, write = disk_rates(folder)
    return Rates(*_compute_rates(), read, write)


def disk_rates(folder: Path, num_bytes: int = _DISK_BYTES) -> tuple[float, float]:
    """Return the rates of reading and writing one file sequentially, in pieces of 4 MB [B/s].

    The file is written twice and the second time counts: a file system takes longer to allocate new blocks.

    Raises:
        StoreError: If nothing can be written there.
    """
    piece = mmap.mmap(-1, _PIECE_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    piece[:] = os.urandom(1 << 16) * (_PIECE_BYTES >> 16)
    places = range(0, num_bytes, _PIECE_BYTES)
    try:
        with tempfile.NamedTemporaryFile(dir=folder, prefix="cs-plan.") as file:
            handle = _open_direct(file.name)
            try:
                for place in places:
                    os.pwritev(handle, [piece], place)
                begin_s = time.perf_counter()
                for place in places:
                    os.pwritev(handle, [piece], place)
                os.fdatasync(handle)
                written_s = time.perf_counter()
                os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
                dropped_s = time.perf_counter()
                for place in places:
                    os.preadv(handle, [piece], place)
                read_s = time.perf_counter()
            finally:
                os.close(handle)
    except OSError as error:
        raise StoreError(
            f"the disk of {folder} cannot be measured ({error}); choose another with --store_dir"
        ) from error
    return num_bytes / (read_s - dropped_s), num_bytes / (written_s - begin_s)


def _open_direct(path: str) -> int:
    try:
        return os.open(path, os.O_RDWR | os.O_DIRECT)
    except OSError:  # a file system without O_DIRECT, such as tmpfs
        return os.open(path, os.O_RDWR)


def _compute_rates() -> tuple[float, float]:
    import tensorflow as tf

    graph = tf.Graph()
    with graph.as_default():
        square = tf.compat.v1.placeholder(tf.float32, (_PRODUCT_SIZE, _PRODUCT_SIZE))
        product = tf.linalg.matmul(square, square).op
        vector = tf.compat.v1.placeholder(tf.float32, (_MEMORY_BYTES // 4,))
        total = (vector * 2.0).op
    with tf.compat.v1.Session(graph=graph) as session:
        ones = np.ones((_PRODUCT_SIZE, _PRODUCT_SIZE), np.float32)
        long = np.ones(_MEMORY_BYTES // 4, np.float32)
        product_s = _seconds_each(lambda: session.run(product, {square: ones}))
        total_s = _seconds_each(lambda: session.run(total, {vector: long}))
    return 2 * _PRODUCT_SIZE**3 / product_s, 2 * _MEMORY_BYTES / total_s


def _seconds_each(action: Callable[[], object]) -> float:
    """Return the time of the fastest of a few calls. Other programs can only make a call slower."""
    action()
    fastest, spent = float("inf"), 0.0
    while spent < _LEAST_S:
        begin_s = time.perf_counter()
        action()
        taken = time.perf_counter() - begin_s
        fastest, spent = min(fastest, taken), spent + taken
    return fastest
