"""The process that reads HDF5 files of other writers: a damaged file can crash libhdf5 or make it loop.

`python -m cerebras_tensorflow.saver.hdf5.process FD` imports h5py once, and forks a process for each file, in a few
milliseconds. `isolated.py` starts it and sends it each file over a socket. If libhdf5 crashes, only the file's process
ends.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import socket
import sys
from typing import Any

import h5py
import numpy as np

from cerebras_tensorflow.errors import CheckpointError, CorruptCheckpointError
from cerebras_tensorflow.saver.bundle import string_tensor
from cerebras_tensorflow.saver.hdf5 import blocks as h5_blocks
from cerebras_tensorflow.saver.hdf5.chunk_cache import open_dataset
from cerebras_tensorflow.saver.hdf5.contents import Contents, load_filters
from cerebras_tensorflow.saver.hdf5.frames import DATA, DONE, FAILED, FRAME, JSON, READY
from cerebras_tensorflow.saver.hdf5.limits import limit_time
from cerebras_tensorflow.saver.hdf5.values import attribute_text, object_bytes

# Large enough for libraries, a chunk cache of 1 GiB and a string tensor; small enough for a machine to survive.
_MAX_ADDRESS_SPACE = 16 << 30


class _Server:
    """Answers the requests for one file."""

    def __init__(self, fd: int, connection: socket.socket) -> None:
        self._connection = connection
        self._fd = fd
        self._file: Any = None
        self._dataset: tuple[str, Any] = ("", None)

    def run(self) -> None:
        """Answer each line of JSON until the connection ends. First, say that this process runs."""
        self._send(READY)
        for line in self._connection.makefile("rb"):
            limit_time()
            request = json.loads(line)
            try:
                getattr(self, "answer_" + request.pop("call"))(**request)
            except CheckpointError as error:
                kind = "damaged" if isinstance(error, CorruptCheckpointError) else "refused"
                self._send(FAILED, json.dumps([kind, str(error)]).encode())
            except Exception as error:  # noqa: BLE001 (h5py raises errors of many types for damaged files)
                text = " ".join(str(error).split()) or type(error).__name__
                self._send(FAILED, json.dumps(["hdf5", text]).encode())
        if self._file is not None:
            self._file.close()  # give up HDF5's lock before the reader sees that this process ends

    def answer_contents(self, path: str, accept_unindexed: bool) -> None:
        """Send the names, types and places of all tensors."""
        self._send_json(Contents(self._opened(), path, os.fstat(self._fd).st_size, accept_unindexed).as_json())

    def answer_describe(self, link: str) -> None:
        """Send a dataset's shape, type and chunks."""
        dataset = self._opened_dataset(link)
        self._send_json([dataset.shape, dataset.dtype.str, dataset.chunks])

    def answer_read(self, link: str, stored: str, selection: list[list[int]] | None) -> None:
        """Send part of a dataset, or all of it in blocks, as elements of a type."""
        dataset = self._opened_dataset(link)
        bounds = selection if selection is not None else [[0, dim] for dim in dataset.shape]
        shape = tuple(stop - start for start, stop in bounds)
        most_bytes = max(dataset.id.get_access_plist().get_chunk_cache()[1], h5_blocks.BLOCK_BYTES)
        for part in h5_blocks.blocks(shape, dataset.chunks, dataset.dtype.itemsize):
            limit_time(most_bytes)
            moved = (
                slice(start + axis.start, start + axis.stop) for axis, (start, _) in zip(part, bounds, strict=True)
            )
            values = np.asarray(dataset[tuple(moved)]).astype(stored, copy=False)
            self._send(DATA, np.ascontiguousarray(values).reshape(-1).view(np.uint8).data)
        self._send(DONE)

    def answer_strings(self, link: str) -> None:
        """Send a dataset of strings as a bundle stores it."""
        dataset = self._opened_dataset(link)
        elements: list[bytes] = []
        for part in h5_blocks.blocks(dataset.shape, dataset.chunks, dataset.dtype.itemsize):
            limit_time(h5_blocks.BLOCK_BYTES)
            elements += string_tensor.to_elements(np.asarray(dataset[part], object))
        limit_time(sum(map(len, elements)))
        self._send(DATA, string_tensor.encode(elements)[0])
        self._send(DONE)

    def answer_attribute(self, name: str) -> None:
        """Send an attribute of the root group as text or a number; null if there is none."""
        self._send_json(attribute_text(self._opened(), name))

    def answer_object(self, names: list[str]) -> None:
        """Send the pickle at the first of some names that has one, in hexadecimal; null if none has one."""
        pickled = object_bytes(self._opened(), names)
        self._send_json(None if pickled is None else pickled.hex())

    def _opened(self) -> Any:
        if self._file is None:
            load_filters()
            self._file = h5py.File(f"/proc/self/fd/{self._fd}", "r")
        return self._file

    def _opened_dataset(self, link: str) -> Any:
        # Keep the last dataset open: its cache of decompressed chunks serves the next block.
        if self._dataset[0] != link:
            self._dataset = ("", None)
            self._dataset = (link, open_dataset(self._opened(), link))
        return self._dataset[1]

    def _send_json(self, value: Any) -> None:
        self._send(JSON, json.dumps(value).encode())

    def _send(self, kind: bytes, payload: bytes | memoryview = b"") -> None:
        self._connection.sendall(FRAME.pack(kind, len(payload)))
        if payload:
            self._connection.sendall(payload)


def _serve_files(control: socket.socket) -> None:
    """Fork a process for each file that arrives, until the other end closes."""
    while True:
        message, fds, _, _ = socket.recv_fds(control, 16, 2)
        if not message:
            return
        if os.fork() == 0:
            control.close()
            _serve_one(*fds)
        for fd in fds:
            os.close(fd)


def _serve_one(file_fd: int, socket_fd: int) -> None:
    """Answer one file's requests, then end this process."""
    try:
        _Server(file_fd, socket.socket(fileno=socket_fd)).run()
    except OSError:
        pass  # the reader has gone
    finally:
        os._exit(0)


def main() -> None:
    """Serve files until the process that reads them ends."""
    # The reader's process decides about signals: a terminal or a launcher sends them to all processes of a group.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel removes ended children
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    if hard == resource.RLIM_INFINITY or hard > _MAX_ADDRESS_SPACE:
        resource.setrlimit(resource.RLIMIT_AS, (_MAX_ADDRESS_SPACE, _MAX_ADDRESS_SPACE))
    _serve_files(socket.socket(fileno=int(sys.argv[1])))


if __name__ == "__main__":
    main()
