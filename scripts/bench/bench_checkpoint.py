"""How fast, and in how much memory, are checkpoints converted, saved and loaded [GB/s, MB, ms]?

Each rate is compared with a plain copy, write or read of the same bytes on the same disk. All measurements of a run
take turns, in an order that changes from turn to turn. Before each, the disk is idle and the source is in the page
cache. Each conversion runs in its own process; the kernel reports its peak resident set and processor time. If other
work shares the machine, compare the least wall times and the processor times.

    python scripts/bench/bench_checkpoint.py --folder /some/disk
    python scripts/bench/bench_checkpoint.py --folder /some/disk --quick   # under five minutes on a quiet machine

Lines that begin with `>` compare a figure with its target. The disk needs about four times the largest size.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import platform
import resource
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from cerebras_tensorflow.saver import tf_h5_saver
from cerebras_tensorflow.saver.bundle.writer import BundleWriter
from cerebras_tensorflow.saver.checkpoint_reader import open_checkpoint
from cerebras_tensorflow.saver.hdf5.writer import H5Writer

GB = 10**9
PIECE = 4 << 20
LARGE_BYTES = 1_600_000_000
PLAIN_WRITES_KB = (64, 1024, 16384)


def tensors(num_bytes: int) -> list[tuple[str, tuple[int, int]]]:
    """Return names and shapes of float32 tensors of a size in all, one of them of 1.6 GB."""
    shapes = [("embedding/table", (LARGE_BYTES // 4 // 2000, 2000))]
    left = num_bytes - LARGE_BYTES
    number = 0
    while left > 0:
        rows = min(left, 64_000_000) // 4 // 2000
        shapes.append((f"layer_{number:03d}/kernel", (max(rows, 1), 2000)))
        left -= max(rows, 1) * 8000
        number += 1
    return shapes


def pieces(num_bytes: int, scratch: np.ndarray) -> Iterator[np.ndarray]:
    """Yield random bytes: the same megabytes repeatedly, from varying offsets."""
    done = 0
    while done < num_bytes:
        count = min(PIECE, num_bytes - done)
        start = done // PIECE % 977
        yield scratch[start : start + count]
        done += count


def write_source(prefix: Path, num_bytes: int) -> None:
    """Write a TensorFlow checkpoint to convert."""
    scratch = np.random.default_rng(7).integers(0, 256, PIECE + 977, np.uint8)
    with BundleWriter(prefix) as writer:
        for name, shape in tensors(num_bytes):
            writer.add_chunks(name, np.float32, shape, pieces(shape[0] * shape[1] * 4, scratch))


def state_of_the_machine() -> str:
    """Return what else could slow the measurements: load, free memory, unwritten pages."""
    with open("/proc/meminfo", encoding="ascii") as file:
        sizes = {line.split(":")[0]: int(line.split()[1]) // 1024 for line in file}
    waiting = sizes["Dirty"] + sizes["Writeback"]
    return f"load {os.getloadavg()[0]:.1f}, {sizes['MemAvailable']} MB of memory free, {waiting} MB wait for the disk"


def resident_mb() -> int:
    """Return the peak resident set of this process [MB]."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


def judge(what: str, figure: float, limit: float, unit: str, is_at_least: bool = False) -> None:
    """Print a figure and its target."""
    holds = figure >= limit if is_at_least else figure <= limit
    print(f"> {what}: {figure:.3g} {unit}, asked {'>=' if is_at_least else '<='} {limit:g}: {'yes' if holds else 'NO'}")


def timed(run: Callable[[], object]) -> float:
    """Return the wall time of a call [s]; first wait until the disk is idle."""
    os.sync()
    start = time.monotonic()
    run()
    return time.monotonic() - start


def timed_both(run: Callable[[], object]) -> tuple[float, float]:
    """Return the wall time and the processor time of a call [s]."""
    start = time.process_time()
    wall_s = timed(run)
    return wall_s, time.process_time() - start


@dataclass(frozen=True)
class Usage:
    """Resources that a process used: wall time [s], processor time [s], peak resident set [MB]."""

    wall_s: float
    cpu_s: float
    peak_mb: int


def conversion(function: str, *arguments: str) -> list[str]:
    """Return the command line of a conversion."""
    code = f"import sys; from cerebras_tensorflow.saver.cli import {function} as f; sys.exit(f(sys.argv[1:]))"
    return [sys.executable, "-c", code, *arguments, "--quiet"]


def used(command: list[str], source: Path) -> Usage:
    """Run a command that reads a file; return what it used. First wait for the disk and cache the file."""
    os.sync()
    subprocess.run(["cat", str(source)], stdout=subprocess.DEVNULL, check=True)
    environment = dict(os.environ, PYTHONPATH=str(Path(__file__).resolve().parents[2]))
    start = time.monotonic()
    with subprocess.Popen(command, env=environment) as process:
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{' '.join(command)} failed")
    return Usage(time.monotonic() - start, usage.ru_utime + usage.ru_stime, usage.ru_maxrss // 1024)


def convert(folder: Path, size_gb: float, repeats: int) -> None:
    """Print rates and memory of both directions beside `cp`."""
    source, h5 = folder / "source", folder / "source.h5"
    write_source(source, int(size_gb * GB))
    data = Path(f"{source}.data-00000-of-00001")
    used(conversion("tensorflow_to_h5", str(source), str(h5)), data)
    out = folder / "out"
    to_h5, to_tensorflow = [str(source), f"{out}.h5"], [str(h5), str(out)]
    durably = 'cp "$0" "$1" && sync "$1"'
    runs = {
        "cp": (["cp", str(data), str(out)], data),
        "cp + fsync": (["sh", "-c", durably, str(data), str(out)], data),
        "tensorflow-to-h5": (conversion("tensorflow_to_h5", *to_h5), data),
        "tensorflow-to-h5 --sync": (conversion("tensorflow_to_h5", *to_h5, "--sync"), data),
        "h5-to-tensorflow": (conversion("h5_to_tensorflow", *to_tensorflow), h5),
        "h5-to-tensorflow --sync": (conversion("h5_to_tensorflow", *to_tensorflow, "--sync"), h5),
    }
    rows: dict[str, list[Usage]] = {name: [] for name in runs}
    for turn in range(repeats):
        names = list(runs)
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            rows[name].append(used(*runs[name]))
            written = [path for path in folder.iterdir() if path.name.startswith("out")]
            if sum(path.stat().st_size for path in written) < data.stat().st_size:
                raise SystemExit(f"{name} lost bytes")
            for path in written:
                path.unlink()
    print(
        f"conversion of {size_gb:g} GB with one tensor of {LARGE_BYTES / GB:g} GB, median of {repeats}, source cached"
    )
    wall_s = {name: statistics.median(usage.wall_s for usage in row) for name, row in rows.items()}
    cpu_s = {name: statistics.median(usage.cpu_s for usage in row) for name, row in rows.items()}
    for name, row in rows.items():
        print(
            f"  {name:23} {wall_s[name]:7.2f} s  {size_gb / wall_s[name]:5.2f} GB/s  spread "
            f"{min(usage.wall_s for usage in row):.2f}-{max(usage.wall_s for usage in row):.2f} s  "
            f"processor {cpu_s[name]:5.2f} s  {wall_s[name] / wall_s['cp']:5.2f} x cp  "
            f"{wall_s[name] / wall_s['cp + fsync']:5.2f} x cp + fsync  peak {max(usage.peak_mb for usage in row)} MB"
        )
    # The peak of a process includes that of the process that forked it.
    print(f"  this process, which is the least that these peaks can be: {resident_mb()} MB")
    for name in ("tensorflow-to-h5", "h5-to-tensorflow"):
        base = f"{name}, {size_gb:g} GB"
        judge(f"{base}, time against cp", wall_s[name] / wall_s["cp"], 1.3, "x")
        judge(f"{base} --sync, time against cp + fsync", wall_s[f"{name} --sync"] / wall_s["cp + fsync"], 1.3, "x")
        judge(f"{base}, peak resident set", max(usage.peak_mb for usage in rows[name]), 400, "MB")
    for path in folder.iterdir():
        path.unlink()


def plain_write(path: Path, arrays: dict[str, np.ndarray], write_bytes: int) -> None:
    """Write the same bytes to one file in writes of a given size, then fsync."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for array in arrays.values():
        view = memoryview(array).cast("B")
        while view.nbytes:
            view = view[os.write(fd, view[:write_bytes]) :]
    os.fsync(fd)
    os.close(fd)


def save_all(writer: BundleWriter | H5Writer, arrays: dict[str, np.ndarray]) -> None:
    """Save arrays through one of our writers."""
    with writer:
        for name, array in arrays.items():
            writer.add(name, array)


def tensorflow_saver(folder: Path, arrays: dict[str, np.ndarray]) -> Callable[[], object] | None:
    """Return a call of TensorFlow's own Saver on the same values, or None without TensorFlow."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    try:
        import tensorflow as tf
    except ImportError:
        return None
    v1 = tf.compat.v1
    v1.disable_eager_execution()
    session = v1.Session()
    for name, array in arrays.items():
        variable = v1.get_variable(name, array.shape, dtype=tf.float32, initializer=v1.zeros_initializer())
        variable.load(array, session)
    saver = v1.train.Saver()
    return lambda: saver.save(session, str(folder / "theirs"), write_meta_graph=False)


# The published writer, run in an environment that has it; prints the time of writing and fsync.
PEER_WRITER = """
import os, sys, time
import numpy as np
from cerebras.appliance.storage import SerializationContext, StorageWriter
rng = np.random.default_rng(3)
values = {f"w{k}": rng.random((10_000, 2_500), np.float32) for k in range(int(sys.argv[2]))}
start = time.monotonic()
with (writer := StorageWriter.get(sys.argv[1])):
    for key, value in values.items():
        serialized = SerializationContext(sys.argv[1], key).serialize(value)
        writer.write(key, serialized.object, serialized.metadata)
with open(sys.argv[1], "rb+") as file:
    os.fsync(file.fileno())
print(time.monotonic() - start)
"""


def saving(folder: Path, size_gb: float, repeats: int, peer: str | None) -> None:
    """Print rates of saving from memory."""
    rng = np.random.default_rng(3)
    arrays = {f"w{k}": rng.random((10_000, 2_500), np.float32) for k in range(round(size_gb * 10))}
    size = sum(array.nbytes for array in arrays.values()) / GB
    theirs = tensorflow_saver(folder, arrays)
    runs: dict[str, Callable[[], object] | None] = {
        **{
            f"plain {kb} kB writes + fsync": lambda kb=kb: plain_write(folder / "plain", arrays, kb << 10)
            for kb in PLAIN_WRITES_KB
        },
        "ours, TensorFlow": lambda: save_all(BundleWriter(folder / "ours"), arrays),
        "ours, HDF5": lambda: save_all(H5Writer(folder / "ours.h5"), arrays),
        # TensorFlow's Saver, unlike ours, does not wait for the disk; sync makes the two comparable.
        "tf Saver": theirs,
        "tf Saver + sync": (lambda: (theirs(), os.sync())) if theirs else None,
        "h5py, LZ4, as published": lambda: published_writer(folder / "lz4.h5", arrays),
    }
    peer_s: list[float] = []
    walls: dict[str, list[float]] = {name: [] for name, run in runs.items() if run}
    for turn in range(repeats):
        names = list(walls)
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            run = runs[name]
            assert run is not None
            walls[name].append(timed(run))
            for path in folder.iterdir():
                path.unlink()
        if peer is not None:
            os.sync()
            done = subprocess.run([peer, "-c", PEER_WRITER, folder / "peer.h5", str(len(arrays))], capture_output=True)
            peer_s.append(float(done.stdout.split()[-1]))
            (folder / "peer.h5").unlink()
    if peer is not None:
        walls["published StorageWriter"] = peer_s
    base = min(statistics.median(times) for name, times in walls.items() if name.startswith("plain"))
    print(f"saving {size:.1f} GB from memory, median of {repeats}; the fastest of the plain writes is what counts")
    for name, times in walls.items():
        median = statistics.median(times)
        print(
            f"  {name:27} {median:6.2f} s  {size / median:5.2f} GB/s  {base / median:4.2f} x the rate of plain writing"
            f"  spread {min(times):.2f}-{max(times):.2f} s"
        )
    medians = {name: statistics.median(times) for name, times in walls.items()}
    for ours in ("ours, TensorFlow", "ours, HDF5"):
        judge(f"{ours}: rate against the fastest plain write + fsync", base / medians[ours], 0.8, "x", True)
        for other in ("tf Saver + sync", "tf Saver"):
            if other in medians:
                judge(f"{ours}: rate against {other}", medians[other] / medians[ours], 1.5, "x", True)
    for other in ("h5py, LZ4, as published", "published StorageWriter"):
        if other in medians:
            judge(f"ours, HDF5: rate against {other}", medians[other] / medians["ours, HDF5"], 1, "x", True)


def published_writer(path: Path, arrays: dict[str, np.ndarray]) -> None:
    """Write with the published writer's defaults: h5py, its own chunks, LZ4; then fsync."""
    import h5py
    import hdf5plugin

    with h5py.File(path, "w") as file:
        for name, array in arrays.items():
            file.create_dataset(name, data=array, **hdf5plugin.LZ4())
    with open(path, "rb+") as file:
        os.fsync(file.fileno())


def loading(folder: Path, size_gb: float, repeats: int) -> None:
    """Print the time of one named tensor, and the rates of all, beside `cat`; page cache warm, then cold."""
    write_source(folder / "c", int(size_gb * GB))
    data = Path(f"{folder / 'c'}.data-00000-of-00001")
    used(conversion("tensorflow_to_h5", str(folder / "c"), str(folder / "c.h5")), data)
    for path, file in ((folder / "c", data), (folder / "c.h5", folder / "c.h5")):
        label = "HDF5" if path.suffix else "TensorFlow"
        runs: dict[str, Callable[[], object]] = {
            "cat": lambda file=file: subprocess.run(["cat", file], stdout=subprocess.DEVNULL, check=True),
            "load": lambda path=path: tf_h5_saver.load(path),
            "through one buffer": lambda path=path: verify(path),
            "load into new arrays": lambda path=path: read_all(path),
            "plain read into new arrays": lambda path=path, file=file: plain_read(path, file),
        }
        for is_cold in (False, True):
            if is_cold:
                runs = {name: runs[name] for name in ("cat", "load", "through one buffer")}
            walls: dict[str, list[float]] = {name: [] for name in runs}
            for turn in range(repeats):
                names = list(runs)
                for name in names[turn % len(names) :] + names[: turn % len(names)]:
                    prepare(file, is_cold)
                    walls[name].append(timed(runs[name]))
            medians = {name: statistics.median(times) for name, times in walls.items()}
            state = "cold" if is_cold else "warm"
            print(f"{label}, {size_gb:g} GB, page cache {state}, every checksum compared, median of {repeats}")
            for name, times in walls.items():
                print(
                    f"  {name:27} {medians[name]:6.2f} s  {size_gb / medians[name]:5.2f} GB/s  "
                    f"{medians['cat'] / medians[name]:4.2f} x cat  spread {min(times):.2f}-{max(times):.2f} s"
                )
            judge(f"{label}, {state}: rate of load against cat", medians["cat"] / medians["load"], 0.8, "x", True)
            if not is_cold:
                ratio = medians["plain read into new arrays"] / medians["load into new arrays"]
                judge(f"{label}, {state}: rate of new arrays against a plain read into such", ratio, 0.8, "x", True)
            prepare(file, is_cold)
            one_s = statistics.median(timed(lambda path=path: read_one(path)) for _ in range(repeats))
            judge(f"{label}, {state}: one small tensor", one_s * 1000, 10, "ms")
    for path in folder.iterdir():
        path.unlink()


def prepare(file: Path, is_cold: bool) -> None:
    """Bring a file into the page cache, or out of it."""
    if is_cold:
        os.sync()
        with open(file, "rb") as opened:
            os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    else:
        subprocess.run(["cat", file], stdout=subprocess.DEVNULL, check=True)


def plain_read(path: Path, file: Path) -> None:
    """Read the bytes of each tensor into a new array with one call, without checksums."""
    with open_checkpoint(path) as reader, open(file, "rb", buffering=0) as source:
        for name in reader.names():
            entry, where = reader.entry(name), reader.extent(name)
            assert where is not None
            array = np.empty(entry.shape, entry.dtype)
            source.seek(where.offset)
            source.readinto(array.reshape(-1).view(np.uint8).data)


def read_one(path: Path) -> None:
    """Open a checkpoint and read ten rows of one tensor."""
    with open_checkpoint(path) as reader:
        reader.read_slice("layer_001/kernel", 100, 110)


def read_all(path: Path) -> None:
    """Read every tensor and compare its checksum."""
    with open_checkpoint(path) as reader:
        for name in reader.names():
            reader.read(name)


def verify(path: Path) -> None:
    """Read every tensor through one buffer, as `cat` does, and compare its checksum."""
    with open_checkpoint(path) as reader:
        reader.verify()


def many(folder: Path) -> None:
    """Print the time of many small tensors."""
    print("many tensors of 16 floats")
    value = np.arange(16, dtype=np.float32)
    first: dict[str, tuple[float, float]] = {}
    for count in (10_000, 100_000):
        for label, path, writer in (("TensorFlow", folder / "m", BundleWriter), ("HDF5", folder / "m.h5", H5Writer)):
            names = [f"block_{k // 100}/layer_{k}/kernel" for k in range(count)]
            write_s = timed(
                lambda names=names, path=path, writer=writer: save_all(writer(path), dict.fromkeys(names, value))
            )
            open_s, open_cpu_s = min(timed_both(lambda path=path: open_checkpoint(path).close()) for _ in range(3))
            read_s, read_cpu_s = min(timed_both(lambda path=path: read_all(path)) for _ in range(3))
            print(
                f"  {label:10} {count:7} tensors: save {write_s:5.2f} s  open {open_s:5.2f} s  "
                f"open and read all {read_s:5.2f} s, of which processor {read_cpu_s:5.2f} s"
            )
            if label in first:
                pairs = zip(("opening", "opening and reading"), first[label], (open_cpu_s, read_cpu_s), strict=True)
                for what, before, now in pairs:
                    judge(f"{label}: processor time of {what} 10 times as many tensors", now / before, 15, "x")
            first[label] = (open_cpu_s, read_cpu_s)
        for path in folder.iterdir():
            path.unlink()


def main() -> None:
    """Run the chosen parts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, required=True, help="an empty or new folder on the disk to measure")
    parser.add_argument("--sizes", type=float, nargs="+", default=[4, 8], help="of the conversions [GB]")
    parser.add_argument("--memory-gb", type=float, default=1.0, help="saved from memory [GB]")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="2 GB instead of --sizes")
    parser.add_argument("--peer", help="python of an environment that scripts/interop_peer.sh made")
    parser.add_argument("--parts", nargs="+", default=["convert", "save", "load", "many"])
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    sizes = [2.0] if options.quick else options.sizes
    if any(options.folder.iterdir()):
        raise SystemExit(f"{options.folder} is not empty; this benchmark removes what it finds there")
    free = shutil.disk_usage(options.folder).free / GB
    print(f"{platform.node()}, {os.cpu_count()} cores, {free:.0f} GB free, Python {platform.python_version()}")
    print(state_of_the_machine())
    if "convert" in options.parts:
        for size in sizes:
            convert(options.folder, size, options.repeats)
    if "save" in options.parts:
        saving(options.folder, options.memory_gb, options.repeats, options.peer)
    if "load" in options.parts:
        loading(options.folder, max(sizes), options.repeats)
    if "many" in options.parts:
        many(options.folder)
    print(state_of_the_machine())
    with contextlib.suppress(OSError):
        options.folder.rmdir()
    print(f"this process: peak {resident_mb()} MB")


if __name__ == "__main__":
    main()
