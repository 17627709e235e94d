"""Compares the rate of a checkpoint in object storage with that of obstore alone, for the same bytes [B/s].

Without --url, the script starts moto's S3 server on loopback, in another process. This server is slow, so the ratio
shows the cost of our checksums and copies relative to it, not the rate over a network.

    python scripts/bench/bench_objects.py --size 1GB --rounds 3
"""

from __future__ import annotations

import argparse
import os
import resource
import socket
import statistics
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import numpy as np

from cerebras_tensorflow.locations import ObjectLocation, object_location
from cerebras_tensorflow.saver import tf_h5_saver
from cerebras_tensorflow.saver.checkpoint_reader import open_checkpoint
from cerebras_tensorflow.saver.objects.store import Bucket
from cerebras_tensorflow.units import format_bytes, parse_size

_OBJECT_BYTES = 32 << 20
_PIECE_BYTES = 8 << 20
_THREADS = 8


@contextmanager
def server() -> Iterator[str]:
    """Run moto's server; yield the URL of a folder in a bucket."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    child = subprocess.Popen(
        [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    os.environ |= {"AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}", "AWS_REGION": "us-east-1"}
    os.environ |= {"AWS_ACCESS_KEY_ID": "bench", "AWS_SECRET_ACCESS_KEY": "bench"}
    try:
        for _ in range(100):
            try:
                request = urllib.request.Request(f"http://127.0.0.1:{port}/bench", method="PUT")
                urllib.request.urlopen(request, timeout=5).close()
                break
            except OSError:
                time.sleep(0.2)
        yield "s3://bench/run"
    finally:
        child.terminate()
        child.wait()


def seconds(call: Callable[[], Any]) -> float:
    """Return how long a call takes [s]."""
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def main() -> None:
    """Print the rates of every round, and the medians of their ratios."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", help="a folder in a bucket to use instead of the local server")
    parser.add_argument("--size", default="512MB", help="size of the checkpoint; default: 512MB")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    if options.url:
        measure(options.url, parse_size(options.size), options.rounds)
        return
    with server() as url:
        measure(url, parse_size(options.size), options.rounds)


def measure(url: str, num_bytes: int, rounds: int) -> None:
    """Measure obstore alone and a checkpoint in turn, and print the rates."""
    location = object_location(url)
    assert location is not None
    bucket = Bucket(location)
    pool = ThreadPoolExecutor(_THREADS)
    count = max(num_bytes // _OBJECT_BYTES, 1)
    values = {f"w{k}": np.random.default_rng(k).integers(0, 256, _OBJECT_BYTES, np.uint8) for k in range(count)}
    total = count * _OBJECT_BYTES

    def put_plainly() -> None:
        list(pool.map(lambda item: bucket.put(f"{location.key}/plain/{item[0]}", item[1].tobytes()), values.items()))

    def get_plainly() -> None:
        ranges = [(name, start) for name in values for start in range(0, _OBJECT_BYTES, _PIECE_BYTES)]
        list(pool.map(lambda item: bucket.get_range(f"{location.key}/plain/{item[0]}", item[1], _PIECE_BYTES), ranges))

    def save() -> None:
        tf_h5_saver.save(f"{url}/checkpoint", values)

    def load() -> None:
        with open_checkpoint(f"{url}/checkpoint") as reader:
            buffer = np.empty(_OBJECT_BYTES, np.uint8)
            for name in reader.names():
                reader.read_into(name, buffer)

    ratios: dict[str, list[float]] = {"save": [], "load": []}
    for number in range(rounds):
        for what, plain, ours in (("save", put_plainly, save), ("load", get_plainly, load)):
            alone, with_us = seconds(plain), seconds(ours)
            ratios[what].append(alone / with_us)
            rates = f"{format_bytes(total / with_us)}/s, obstore alone {format_bytes(total / alone)}/s"
            print(f"round {number}: {what} {rates}, ratio {alone / with_us:.2f}", flush=True)
    remove(location, bucket)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    for what, found in ratios.items():
        print(f"{what}: median ratio {statistics.median(found):.2f}, from {min(found):.2f} to {max(found):.2f}")
    print(f"largest memory: {format_bytes(peak)}, of which the values {format_bytes(total)}")


def remove(location: ObjectLocation, bucket: Bucket) -> None:
    """Remove everything that was written."""
    bucket.delete([item.key for item in bucket.list(location.key)])


if __name__ == "__main__":
    main()
