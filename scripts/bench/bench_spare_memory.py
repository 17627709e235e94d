"""How many bytes does a file store move, if a part of it fits into spare memory [MB in a step, s]?

    python scripts/bench/bench_spare_memory.py --folder /some/disk --weights 8 --megabytes 16 --share 0.5

Two stores take turns: one keeps a share of its content in spare memory, the other one keeps nothing there. A step reads
each weight twice and its two slots once, in the order of a forward and a backward pass, and writes all of them. Prints
medians of the bytes that this process reads from the disk and hands to it to be written (/proc/self/io).
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from cerebras_tensorflow.graph.program import WeightSpec
from cerebras_tensorflow.runtime.weight_store import file
from cerebras_tensorflow.runtime.weight_store.file import FileStore

SLOTS = 2  # of Adam


def main() -> None:
    """Run the benchmark and print one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path("/tmp/bench_spare_memory"))
    parser.add_argument("--weights", type=int, default=8)
    parser.add_argument("--megabytes", type=int, default=16, help="size of a weight")
    parser.add_argument("--share", type=float, default=0.5, help="of the store that fits into spare memory")
    parser.add_argument("--steps", type=int, default=4)
    options = parser.parse_args()
    value = np.random.default_rng(0).normal(size=(options.megabytes << 8, 1024)).astype(np.float32)
    count = (1 + SLOTS) * options.weights
    specs = [WeightSpec(str(index), "float32", value.shape, value.nbytes) for index in range(count)]
    reads = [value.nbytes * (2 if index < options.weights else 1) for index in range(count)]
    stores: dict[str, FileStore] = {}
    for name, share in (("past the cache", 0.0), ("in spare memory", options.share)):
        free_bytes = int(share * count * value.nbytes / file.CACHED_SHARE)
        file.free_memory_bytes = lambda free_bytes=free_bytes: free_bytes
        stores[name] = FileStore(specs, options.folder / name.replace(" ", "_"), reads=reads)
        for index in range(count):
            stores[name].write(index, value)
        stores[name].drop_cache()
    found: dict[str, list[dict[str, float]]] = {name: [] for name in stores}
    for _ in range(options.steps):
        for name, store in stores.items():
            found[name].append(measured(store, options.weights))
    result = {
        name: {key: round(statistics.median(step[key] for step in steps[1:]), 2) for key in steps[0]}
        for name, steps in found.items()
    }
    for name, store in stores.items():
        result[name]["cached_MB"] = store.cached_bytes / 1e6
        store.close()
    print(json.dumps({"load": os.getloadavg(), **result}, indent=1))


def measured(store: FileStore, count: int) -> dict[str, float]:
    """Do what a step does with a store; return seconds, processor seconds and megabytes."""
    before, cpu_s, begin_s = disk_bytes(), time.process_time(), time.perf_counter()
    for index in range(count):
        store.read(index)
    for index in reversed(range(count)):
        weight = store.read(index)
        store.write(index, weight)
        for slot in range(1, SLOTS + 1):
            store.write(index + slot * count, store.read(index + slot * count))
    store.flush()
    taken_s, cpu_s = time.perf_counter() - begin_s, time.process_time() - cpu_s
    read, written = (after - earlier for after, earlier in zip(disk_bytes(), before, strict=True))
    return {"s": taken_s, "cpu_s": cpu_s, "read_MB": read / 1e6, "written_MB": written / 1e6}


def disk_bytes() -> tuple[int, int]:
    """Return the bytes that this process has read from disks, and handed to them to be written."""
    lines = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return int(lines["read_bytes"]), int(lines["write_bytes"])


if __name__ == "__main__":
    main()
