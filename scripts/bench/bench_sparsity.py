"""What does sparsity save in weight streaming: bytes moved, peak memory [B] and step time [s]?

    python scripts/bench/bench_sparsity.py --layers 24 --hidden 2048 --heads 16

It runs bench_streaming.py as processes with a file store that bypasses the page cache, at each sparsity: with the zeros
of sparse weights packed, and with --with-unpacked also without. Losses of both must be equal. The first step of each
run does not count. All figures are measured, none simulated. To limit the disk, start it in a cgroup with
blkio.throttle.{read,write}_bps_device.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent


def parser() -> argparse.ArgumentParser:
    """Return the parser; options that it does not know go to bench_streaming.py."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--sparsities", type=float, nargs="+", default=[0.0, 0.5, 0.75, 0.9])
    options.add_argument("--steps", type=int, default=3, help="steps of each run; the first does not count")
    options.add_argument("--with-unpacked", action="store_true", help="also move the zeros, and compare the losses")
    options.add_argument("--store-dir", type=Path, default=Path("/tmp/bench_sparsity"), help="on the disk to use")
    return options


def run(sparsity: float, options: argparse.Namespace, rest: list[str]) -> dict[str, Any]:
    """Return the result of one run of bench_streaming.py."""
    command = [sys.executable, str(HERE / "bench_streaming.py"), "--store", "file", "--direct"]
    command += [
        "--sparsity",
        str(sparsity),
        "--steps",
        str(options.steps),
        "--store-dir",
        str(options.store_dir),
        *rest,
    ]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return dict(json.loads(output.splitlines()[-1]))


def main() -> None:
    """Run the benchmark and print its table."""
    options, rest = parser().parse_known_args()
    print(
        "sparsity  packed  GB read/step  GB written/step  peak GB  median step s  median CPU s  losses as unpacked",
        flush=True,
    )
    for sparsity in options.sparsities:
        runs = [(True, run(sparsity, options, rest))]
        if options.with_unpacked and sparsity:
            runs.append((False, run(sparsity, options, [*rest, "--no-packing"])))
        for is_packed, result in runs:
            read, written = result["file_bytes_per_step"]
            cpu_s = statistics.median(result["cpu_s"][1:] or result["cpu_s"])
            same = str(all(one["losses"] == result["losses"] for _, one in runs)) if len(runs) > 1 else "-"
            print(
                f"{sparsity:8.0%}  {is_packed!s:>6}  {read / 1e9:12.3f}  {written / 1e9:15.3f}  "
                f"{result['peak_rss_bytes'] / 1e9:7.2f}  {result['median_step_s']:13.2f}  {cpu_s:12.1f}  {same:>18}",
                flush=True,
            )


if __name__ == "__main__":
    main()
