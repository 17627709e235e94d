"""How near does the weight store come to the plain disk, and what do its checksums cost [GB/s, processor seconds]?

    python scripts/bench/bench_weight_store.py --folder /some/disk --gigabytes 4 --repeats 3

These take turns in one run, on one disk: plain sequential reads and writes of one file (direct, 4 MB pieces), and the
store's reads and writes of as many bytes of weights, cold, past and through the page cache. Prints medians and spread.
"""

from __future__ import annotations

import argparse
import json
import mmap
import os
import resource
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from cerebras_tensorflow.graph.program import WeightSpec
from cerebras_tensorflow.runtime.weight_store.blocks import checksums
from cerebras_tensorflow.runtime.weight_store.file import FileStore

GB = 10**9
ROWS, WIDTH = 4096, 4096
WEIGHT_BYTES = ROWS * WIDTH * 4
PIECE_BYTES = 4 << 20


def timed(action: Callable[[], object], num_bytes: int) -> tuple[float, float]:
    """Return GB/s and processor seconds for each GB."""
    before = resource.getrusage(resource.RUSAGE_SELF)
    begin_s = time.perf_counter()
    action()
    taken_s = time.perf_counter() - begin_s
    after = resource.getrusage(resource.RUSAGE_SELF)
    processor_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return num_bytes / taken_s / GB, processor_s * GB / num_bytes


class Plain:
    """One file, read and written from beginning to end."""

    def __init__(self, folder: Path, num_bytes: int) -> None:
        self._path = folder / "plain"
        self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_DIRECT, 0o600)
        self._num_bytes = num_bytes
        self._piece = mmap.mmap(-1, PIECE_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self._piece[:] = os.urandom(1 << 16) * (PIECE_BYTES >> 16)

    def write(self) -> None:
        """Write the file."""
        for place in range(0, self._num_bytes, PIECE_BYTES):
            os.pwritev(self._file, [self._piece], place)
        os.fdatasync(self._file)

    def read(self) -> None:
        """Read the file."""
        for place in range(0, self._num_bytes, PIECE_BYTES):
            os.preadv(self._file, [self._piece], place)

    def close(self) -> None:
        """Remove the file."""
        os.close(self._file)
        self._path.unlink()


class Rates:
    """Rates and costs of actions by name, one pair for each repetition."""

    def __init__(self, num_bytes: int) -> None:
        self._num_bytes = num_bytes
        self._taken: dict[str, list[tuple[float, float]]] = {}

    def note(self, name: str, action: Callable[[], object]) -> None:
        """Run an action and record its rate."""
        self._taken.setdefault(name, []).append(timed(action, self._num_bytes))

    def report(self) -> dict[str, dict[str, float]]:
        """Return medians and spread."""
        return {
            name: {
                "GB/s": round(statistics.median(rate for rate, _ in values), 2),
                "least GB/s": round(min(rate for rate, _ in values), 2),
                "most GB/s": round(max(rate for rate, _ in values), 2),
                "processor s/GB": round(statistics.median(cost for _, cost in values), 3),
            }
            for name, values in self._taken.items()
        }


def write_all(store: FileStore, count: int, value: np.ndarray) -> None:
    """Write all weights, and wait until they are on the disk."""
    for index in range(count):
        store.write(index, value)
    store.flush()
    os.fdatasync(store._folder.file)  # noqa: SLF001 - a benchmark may look inside


def read_all(store: FileStore, count: int) -> None:
    """Read all weights."""
    for index in range(count):
        store.read(index)


def check_all(count: int, value: np.ndarray) -> None:
    """Compute the checksums of all weights."""
    flat = value.reshape(-1).view(np.uint8)
    for _ in range(count):
        checksums(flat)


def main() -> None:
    """Run the benchmark and print one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path("/tmp/bench_weight_store"))
    parser.add_argument("--gigabytes", type=float, default=2.0)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    count = max(1, round(options.gigabytes * GB / WEIGHT_BYTES))
    num_bytes = count * WEIGHT_BYTES
    specs = [WeightSpec(f"w{number}", "float32", (ROWS, WIDTH), WEIGHT_BYTES) for number in range(count)]
    value = np.random.default_rng(0).normal(size=(ROWS, WIDTH)).astype(np.float32)
    plain = Plain(options.folder, num_bytes)
    stores = {
        "direct": FileStore(specs, options.folder / "direct", is_direct=True),
        "cached": FileStore(specs, options.folder / "cached", is_direct=False),
    }
    plain.write()
    for store in stores.values():
        write_all(store, count, value)
        store.drop_cache()
    rates = Rates(num_bytes)
    for _ in range(options.repeats):
        rates.note("plain write", plain.write)
        rates.note("plain read", plain.read)
        for name, store in stores.items():
            rates.note(f"{name} store write", lambda store=store: write_all(store, count, value))
            store.drop_cache()
            rates.note(f"{name} store read, cold", lambda store=store: read_all(store, count))
        rates.note("cached store read, warm", lambda: read_all(stores["cached"], count))
        rates.note("checksums alone", lambda: check_all(count, value))
    for store in stores.values():
        store.close()
    plain.close()
    print(json.dumps({"bytes": num_bytes, "repeats": options.repeats, "results": rates.report()}, indent=1))


if __name__ == "__main__":
    main()
