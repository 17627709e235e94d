"""How long does a step take that does not fit in memory, compared with computation alone and with the disk alone [s]?

    python scripts/bench/bench_cold_streaming.py --layers 24 --hidden 2048 --heads 16

It runs bench_streaming.py as processes, in turns: weights in memory (compute alone), then a cold file store.
Then it reads and writes, in order and past the page cache, as many bytes as the schedule moved, on the same disk (I/O
alone). The last column is the step's time over the larger of these two. All figures are measured, none simulated.
"""

from __future__ import annotations

import argparse
import json
import mmap
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
_CHUNK_BYTES = 16 << 20


def parser() -> argparse.ArgumentParser:
    """Return the parser; options that it does not know go to bench_streaming.py."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument(
        "--store-dir", type=Path, default=Path("/tmp/bench_cold_streaming"), help="folder on the disk to use"
    )
    options.add_argument("--steps", type=int, default=3, help="steps of each run; the first does not count")
    options.add_argument("--rounds", type=int, default=1)
    options.add_argument("--disk-gb", type=float, default=4.0, help="GB to read and write to measure the disk's rates")
    return options


def run(store: str, folder: Path, steps: int, rest: list[str]) -> dict[str, Any]:
    """Return the result of one run of bench_streaming.py."""
    command = [sys.executable, str(HERE / "bench_streaming.py"), "--store", store, "--steps", str(steps), *rest]
    command += ["--store-dir", str(folder / "store")] + (["--cold"] if store == "file" else [])
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return dict(json.loads(output.splitlines()[-1]))


def disk_rates(folder: Path, num_bytes: int) -> tuple[float, float]:
    """Return the rates of a plain sequential write and read past the page cache [B/s]."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "sequential"
    chunk = mmap.mmap(-1, _CHUNK_BYTES)  # page-aligned, as O_DIRECT needs it
    chunk.write(os.urandom(_CHUNK_BYTES))
    count = max(1, num_bytes // _CHUNK_BYTES)
    rates = []
    try:
        for flags in (os.O_WRONLY | os.O_CREAT, os.O_RDONLY):
            file = os.open(path, flags | os.O_DIRECT, 0o600)
            begin = time.perf_counter()
            for _ in range(count):
                os.write(file, chunk) if flags & os.O_WRONLY else os.readv(file, [chunk])
            if flags & os.O_WRONLY:
                os.fdatasync(file)
            rates.append(count * _CHUNK_BYTES / (time.perf_counter() - begin))
            os.close(file)
    finally:
        path.unlink(missing_ok=True)
    return rates[0], rates[1]


def main() -> None:
    """Run the benchmark and print its table."""
    options, rest = parser().parse_known_args()
    ratios = []
    for number in range(options.rounds):
        memory = run("memory", options.store_dir, options.steps, rest)
        cold = run("file", options.store_dir, options.steps, rest)
        write, read = disk_rates(options.store_dir, int(options.disk_gb * 1e9))
        # One step's bytes: the first write fills the store.
        moved_read = cold["bytes_read"] / options.steps
        moved_write = (cold["bytes_written"] - cold["weight_bytes"]) / options.steps
        io_s = moved_read / read + moved_write / write
        step_s, compute_s = cold["median_step_s"], memory["median_step_s"]
        ratios.append(step_s / max(io_s, compute_s))
        print(
            f"round {number + 1}: step {step_s:.2f} s  compute alone {compute_s:.2f} s  I/O alone {io_s:.2f} s "
            f"({moved_read / 1e9:.1f} GB read at {read / 1e9:.2f} GB/s, {moved_write / 1e9:.1f} GB written at "
            f"{write / 1e9:.2f} GB/s)  step / max = {ratios[-1]:.2f}  peak {cold['peak_rss_bytes'] / 1e9:.2f} GB, "
            f"planned {cold['planned_peak_bytes'] / 1e9:.2f} GB  same loss: {cold['losses'] == memory['losses']}",
            flush=True,
        )
    print(f"median of step / max(compute, I/O): {statistics.median(ratios):.2f}")


if __name__ == "__main__":
    main()
