"""What does packing the zeros of weights save on the wire to a weight server: ns per byte of weight, and bytes moved?

    python scripts/bench/bench_weight_servers.py --link 125 --megabytes 67

One weight server runs as a process on this machine. Writes and reads with and without packing alternate in one run.
`--link` puts a relay before the server that passes at most so many MB/s each way; without it, the wire is the loopback.
Prints medians. All figures are measured.
"""

from __future__ import annotations

import argparse
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from cerebras_tensorflow.graph.program import WeightSpec
from cerebras_tensorflow.runtime.host.announcement import read_announcement
from cerebras_tensorflow.runtime.weight_store import server
from cerebras_tensorflow.runtime.weight_store.remote import ServerAddress, ServerStore
from cerebras_tensorflow.runtime.weight_store.wire import Packing

COLUMNS = 2048
CHUNK_BYTES = 64 << 10


def parser() -> argparse.ArgumentParser:
    """Return the parser of the options."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--sparsities", type=float, nargs="+", default=[0.0, 0.5, 0.75, 0.9])
    options.add_argument("--megabytes", type=int, default=268, help="size of the weight")
    options.add_argument("--repeats", type=int, default=5, help="the first one does not count")
    options.add_argument("--link", type=float, help="most MB/s each way")
    return options


def relay(source: socket.socket, target: socket.socket, bytes_per_s: float) -> None:
    """Pass on bytes at a limited rate until the source ends."""
    free_at = time.perf_counter()
    while data := source.recv(CHUNK_BYTES):
        free_at = max(free_at, time.perf_counter()) + len(data) / bytes_per_s
        time.sleep(max(0.0, free_at - time.perf_counter()))
        target.sendall(data)


def start_relay(address: str, bytes_per_s: float) -> str:
    """Return the address of a relay to a server."""
    listener = socket.create_server(("127.0.0.1", 0))
    host, port = address.rsplit(":", 1)

    def serve() -> None:
        while True:
            client = listener.accept()[0]
            upstream = socket.create_connection((host, int(port)))
            for pair in ((client, upstream), (upstream, client)):
                threading.Thread(target=relay, args=(*pair, bytes_per_s), daemon=True).start()

    threading.Thread(target=serve, daemon=True).start()
    return f"127.0.0.1:{listener.getsockname()[1]}"


@contextmanager
def weight_server(link_mb_per_s: float | None) -> Iterator[ServerAddress]:
    """Yield the address of a weight server."""
    folder = Path(tempfile.mkdtemp())
    process = subprocess.Popen([sys.executable, "-m", server.__name__, str(folder), "0"])
    try:
        while (about := read_announcement(server.server_file(folder, 0))) is None:
            time.sleep(0.1)
        if link_mb_per_s:
            about["target"] = start_relay(about["target"], link_mb_per_s * 1e6)
        yield ServerAddress(0, **about)
    finally:
        process.kill()
        process.wait()


def seconds_of(store: ServerStore, value: np.ndarray) -> tuple[float, float]:
    """Return the time to write and to read a weight [s]."""
    begin_s = time.perf_counter()
    store.write(0, value)
    store.flush()
    written_s = time.perf_counter()
    store.read(0)
    return written_s - begin_s, time.perf_counter() - written_s


def main() -> None:
    """Run the benchmark and print its table."""
    options = parser().parse_args()
    rows = options.megabytes * 10**6 // (COLUMNS * 4)
    random = np.random.default_rng(0)
    print("zeros  packed  write ns/B  read ns/B  share of bytes moved", flush=True)
    with weight_server(options.link) as address:
        for sparsity in options.sparsities:
            value = random.normal(size=(rows, COLUMNS)).astype(np.float32)
            value[random.random(value.shape) < sparsity] = 0
            stores = [ServerStore([WeightSpec("w", "float32", value.shape, value.nbytes)], [address]) for _ in range(2)]
            times: list[list[tuple[float, float]]] = [[], []]
            for _ in range(options.repeats):
                times[1].append(seconds_of(stores[1], value))
                with mock.patch.object(stores[0], "_packing", return_value=Packing()):
                    times[0].append(seconds_of(stores[0], value))
            for is_packed in (True, False):
                write, read = (
                    statistics.median(one) / value.nbytes * 1e9 for one in zip(*times[is_packed][1:], strict=True)
                )
                share = stores[is_packed].wire_bytes[0] / (options.repeats * value.nbytes)
                print(f"{sparsity:5.0%}  {is_packed!s:>6}  {write:10.2f}  {read:9.2f}  {share:20.2f}", flush=True)
                stores[is_packed].close()


if __name__ == "__main__":
    main()
