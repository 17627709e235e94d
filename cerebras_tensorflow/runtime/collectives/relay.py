"""Rank 0 of a run on several CSX: moves the bytes of the first CSX, which is a process without MPI.

So an error of MPI, or a rank that dies, cannot end the user's process. The first CSX puts what it sends into shared
memory, and takes from there what it receives. Commands and answers go over a local socket.

A command is a line of JSON: {"memory": bytes of a new shared memory or 0, "outgoing": sizes, "incoming": sizes}, or
{"end": true}. The parts are in this order in the memory. The answer is a line of JSON: {"error": text or null}.
"""

from __future__ import annotations

import itertools
import json
import mmap
import os
import socket
from pathlib import Path

import numpy as np

from cerebras_tensorflow.errors import CollectiveError
from cerebras_tensorflow.runtime.collectives.interface import Bytes, Collectives
from cerebras_tensorflow.runtime.collectives.shared_files import end_at_once

SOCKET_FILE, SECRET_FILE = "relay.socket", "secret"
_LINE_BYTES = 1 << 20


def serve(ranks: Collectives, folder: Path) -> None:
    """Move bytes for the first CSX until it ends the run, or is gone.

    Args:
        ranks: Rank 0.
        folder: Folder of the run, with the secret.
    """
    secret = (folder / SECRET_FILE).read_bytes()
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as link:
        link.connect(os.readlink(folder / SOCKET_FILE))  # a short path: a socket's has at most 107 bytes
        link.sendall(secret)
        memory = np.empty(0, np.uint8)
        while True:
            line, fds, _, _ = socket.recv_fds(link, _LINE_BYTES, 1)
            if not line:
                end_at_once(1)  # the first CSX is gone
            command = json.loads(line)
            if command.get("end"):
                return
            if fds:
                memory = mapped(fds[0], command["memory"])
            error = _exchanged(ranks, memory, command["outgoing"], command["incoming"])
            link.sendall(json.dumps({"error": error}).encode())


def mapped(fd: int, size: int) -> Bytes:
    """Return shared memory as an array; close the file."""
    try:
        return np.frombuffer(mmap.mmap(fd, size), np.uint8)
    finally:
        os.close(fd)


def cut(memory: Bytes, sizes: list[int], start: int = 0) -> list[Bytes]:
    """Return consecutive parts of a memory."""
    ends = np.cumsum([start, *sizes])
    return [memory[begin:end] for begin, end in itertools.pairwise(ends)]


def _exchanged(ranks: Collectives, memory: Bytes, outgoing: list[int], incoming: list[int]) -> str | None:
    try:
        ranks.exchange(cut(memory, outgoing), cut(memory, incoming, sum(outgoing)))
    except CollectiveError as error:
        return str(error)
    return None
