"""How near does a weight server come to plain memory copies over loopback TCP [GB/s]?

    python scripts/bench/bench_weight_servers.py --megabytes 64 --rounds 7

A weight server and a plain TCP server run in a process each. In turns, this process reads and writes one weight through
the store of a run, and moves as many bytes over a socket, into memory that it used before. Prints medians and spread.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from cerebras_tensorflow.graph.program import WeightSpec
from cerebras_tensorflow.runtime.host.announcement import read_announcement
from cerebras_tensorflow.runtime.weight_store.remote import ServerAddress, ServerStore
from cerebras_tensorflow.runtime.weight_store.server import server_file

ROOT = Path(__file__).resolve().parents[2]
_PLAIN = """
import socket, sys
size = int(sys.argv[1])
memory = memoryview(bytearray(size))
with socket.create_server(("127.0.0.1", 0)) as server:
    print(server.getsockname()[1], flush=True)
    link, _ = server.accept()
while order := link.recv(1):
    if order == b"r":
        link.sendall(memory)
        continue
    done = 0
    while done < size:
        done += link.recv_into(memory[done:])
    link.sendall(b".")
"""


class Plain:
    """Memory of another process over one socket."""

    def __init__(self, num_bytes: int) -> None:
        command = [sys.executable, "-c", _PLAIN, str(num_bytes)]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        self._link = socket.create_connection(("127.0.0.1", int(self._process.stdout.readline())))
        self._memory = memoryview(bytearray(num_bytes))

    def read(self) -> None:
        """Read all of it."""
        self._link.sendall(b"r")
        done = 0
        while done < len(self._memory):
            done += self._link.recv_into(self._memory[done:])

    def write(self) -> None:
        """Write all of it."""
        self._link.sendall(b"w")
        self._link.sendall(self._memory)
        self._link.recv(1)

    def close(self) -> None:
        """End the other process."""
        self._link.close()
        self._process.wait()


def rate(action: Callable[[], object], num_bytes: int) -> float:
    """Return GB/s."""
    begin_s = time.perf_counter()
    action()
    return num_bytes / (time.perf_counter() - begin_s) / 1e9


def main() -> None:
    """Run the benchmark and print one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    value = np.random.default_rng(0).normal(size=(options.megabytes * 250, 1000)).astype(np.float32)
    spec = WeightSpec("w", "float32", value.shape, value.nbytes)
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "cerebras_tensorflow.runtime.weight_store.server", folder, "0"]
        server = subprocess.Popen(command, env={**os.environ, "PYTHONPATH": str(ROOT)})
        try:
            while (about := read_announcement(server_file(Path(folder), 0))) is None:
                time.sleep(0.05)
            rates = measure(ServerStore([spec], [ServerAddress(0, **about)]), value, options.rounds)
        finally:
            server.kill()
            server.wait()
    print(json.dumps({"bytes": value.nbytes, "load": os.getloadavg(), "GB/s": rates}, indent=1))


def measure(store: ServerStore, value: np.ndarray, rounds: int) -> dict[str, dict[str, float]]:
    """Return the rates of reads and writes: median and range, and the store's share of the plain rate."""
    plain = Plain(value.nbytes)
    actions: dict[str, Callable[[], object]] = {
        "plain write": plain.write,
        "store write": lambda: (store.write(0, value), store.flush()),
        "plain read": plain.read,
        "store read": lambda: store.read(0),
    }
    found: dict[str, list[float]] = {name: [] for name in actions}
    for number in range(rounds + 1):
        for name, action in actions.items():
            taken = rate(action, value.nbytes)
            if number:  # the first round makes the memory
                found[name].append(taken)
    np.testing.assert_array_equal(store.read(0), value)
    store.close()
    plain.close()
    result = {
        name: {"median": round(statistics.median(v), 2), "least": round(min(v), 2), "most": round(max(v), 2)}
        for name, v in found.items()
    }
    for kind in ("read", "write"):
        pairs = zip(found[f"store {kind}"], found[f"plain {kind}"], strict=True)
        result[f"store {kind}"]["share"] = round(statistics.median(a / b for a, b in pairs), 2)
    return result


if __name__ == "__main__":
    main()
