"""Reading an HDF5 file through libhdf5 in another process, so that a damaged file cannot end this one.

The first file starts a process without TensorFlow, which takes about 0.3 s. It forks a process for each file
(`process.py`). Everything ends with this process.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

from cerebras_tensorflow.errors import CheckpointError, CorruptCheckpointError
from cerebras_tensorflow.saver.hdf5.frames import DONE, FAILED, FRAME
from cerebras_tensorflow.saver.hdf5.limits import MAX_CPU_S

_MAX_JSON_BYTES = 1 << 30
_CLOSE_TIMEOUT_S = 10.0
_MODULE = "cerebras_tensorflow.saver.hdf5.process"


class _Starter:
    """The process that forks a process for each file. It starts at the first file, and again if somebody killed it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._owner = 0

    def send(self, file_fd: int, socket_fd: int) -> None:
        """Hand over an open file, and the socket for its requests."""
        with self._lock:
            if self._control is not None and self._owner == os.getpid():
                with contextlib.suppress(OSError):
                    socket.send_fds(self._control, [b"open"], [file_fd, socket_fd])
                    return
                self._end()
            self._start()
            assert self._control is not None
            socket.send_fds(self._control, [b"open"], [file_fd, socket_fd])

    def end(self) -> None:
        """End the process; the processes of open files end with their readers."""
        with self._lock:
            if self._owner == os.getpid():
                self._end()

    def _start(self) -> None:
        mine, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        folders = os.pathsep.join(os.path.abspath(folder) for folder in sys.path)
        # One thread for NumPy: a process with threads must not fork.
        environment = dict(os.environ, PYTHONPATH=folders, OPENBLAS_NUM_THREADS="1")
        null = subprocess.DEVNULL
        with other:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", _MODULE, str(other.fileno())],
                stdin=null,
                stdout=null,
                stderr=null,
                env=environment,
                pass_fds=[other.fileno()],
            )
        self._control, self._owner = mine, os.getpid()

    def _end(self) -> None:
        if self._control is not None:
            with self._control, contextlib.suppress(OSError):
                self._control.shutdown(socket.SHUT_RDWR)  # a fork of this process may have the socket too
        if self._process is not None:
            try:
                self._process.wait(_CLOSE_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self._control = self._process = None


_starter = _Starter()
atexit.register(_starter.end)


def _started(path: str, fd: int) -> socket.socket:
    """Start a process for an open file, and return the socket for requests."""
    reason = "it ended before it read the file"
    for _ in range(2):  # twice: somebody may have killed the process that forks
        mine, other = socket.socketpair()
        try:
            with other:
                _starter.send(fd, other.fileno())
            if mine.recv(FRAME.size, socket.MSG_WAITALL):
                return mine
        except OSError as exc:
            reason = str(exc)
        mine.close()
        _starter.end()
    raise CheckpointError(
        f"{path}: the process that reads HDF5 files cannot start: {reason}. Check "
        f"`{sys.executable} -c 'import h5py'`, and the limits on memory and processes."
    )


class IsolatedH5:
    """An HDF5 file that another process reads. Threads may share it.

    Args:
        path: The file, for messages.
        fd: The open file.

    Raises:
        CheckpointError: If no process can be started.
    """

    def __init__(self, path: str, fd: int) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._connection = _started(path, fd)
        self._owner = os.getpid()
        self._is_answered = True  # no part of an answer is left in the connection

    def ask(self, call: str, **arguments: Any) -> Any:
        """Return the answer to a call of `process.py`, as decoded JSON.

        Raises:
            CheckpointError: If the file is refused.
            CorruptCheckpointError: If the file is damaged, or crashed the process.
            OSError: If HDF5 reports an error.
        """
        with self._answer(call, arguments):
            _, size = self._frame()
            if size > _MAX_JSON_BYTES:
                raise self._gone("it sent a list that is too long")
            content = self._received(size)
            self._is_answered = True
        try:
            return json.loads(content)
        except (ValueError, RecursionError) as exc:
            raise self._gone(f"it sent no valid list: {exc}") from exc

    def read_into(self, target: memoryview, call: str, **arguments: Any) -> None:
        """Fill memory with the bytes that a call returns.

        Raises:
            OSError: If HDF5 reports an error, or returns more or fewer bytes.
            CorruptCheckpointError: As `ask`.
        """
        done = 0
        with self._answer(call, arguments):
            while True:
                kind, size = self._frame()
                if kind == DONE:
                    break
                if done + size > target.nbytes:
                    raise self._gone(f"it has more than the {target.nbytes} bytes of its type and shape")
                self._fill(target[done : done + size])
                done += size
        if done != target.nbytes:
            raise OSError(f"HDF5 returned {done} of {target.nbytes} bytes")

    def read_all(self, call: str, max_bytes: int, **arguments: Any) -> bytes:
        """Return the bytes that a call returns. Raises: As `read_into`."""
        parts: list[bytes] = []
        with self._answer(call, arguments):
            while True:
                kind, size = self._frame()
                if kind == DONE:
                    return b"".join(parts)
                max_bytes -= size
                if max_bytes < 0:
                    raise self._gone("its strings take more memory than its size allows")
                parts.append(self._received(size))

    def close(self) -> None:
        """End the file's process, and wait for it: it holds HDF5's lock on the file.

        In a fork of the process that opened the file, the file's process goes on.
        """
        if self._owner != os.getpid():
            self._connection.close()
            return
        with self._lock, self._connection, contextlib.suppress(OSError):
            self._connection.settimeout(_CLOSE_TIMEOUT_S)
            self._connection.shutdown(socket.SHUT_WR)
            while self._connection.recv(1 << 16):
                pass

    @contextlib.contextmanager
    def _answer(self, call: str, arguments: dict[str, Any]) -> Iterator[None]:
        """Send a call, and let the caller receive its answer.

        An exception before the end of the answer, such as KeyboardInterrupt, closes the connection. Otherwise the
        next call would read the rest of this answer.
        """
        if self._owner != os.getpid():
            raise CheckpointError(f"{self._path}: another process opened this reader. Open the file in this process.")
        with self._lock:
            try:
                self._request(call, arguments)
                yield
            finally:
                if not self._is_answered:
                    self._connection.close()

    def _request(self, call: str, arguments: dict[str, Any]) -> None:
        if self._connection.fileno() < 0:
            ended = "closed" if self._is_answered else "closed: a read ended in an error, or was interrupted"
            raise CheckpointError(f"{self._path}: this reader is {ended}. Open the file again.")
        self._is_answered = False
        try:
            self._connection.sendall(json.dumps({"call": call, **arguments}).encode() + b"\n")
        except OSError as exc:
            raise self._gone() from exc

    def _frame(self) -> tuple[bytes, int]:
        """Return the kind and size of what follows; raise an error that the process reports."""
        kind, size = FRAME.unpack(self._received(FRAME.size))
        if kind != FAILED:
            self._is_answered = kind == DONE
            return kind, size
        how, text = json.loads(self._received(size))
        self._is_answered = True
        if how == "hdf5":
            raise OSError(text.replace("/proc/self/fd/", "file descriptor "))
        raise (CorruptCheckpointError if how == "damaged" else CheckpointError)(text)

    def _received(self, size: int) -> bytes:
        content = bytearray(size)
        self._fill(memoryview(content))
        return bytes(content)

    def _fill(self, target: memoryview) -> None:
        while target.nbytes:
            try:
                count = self._connection.recv_into(target)
            except OSError as exc:
                raise self._gone() from exc
            if not count:
                raise self._gone()
            target = target[count:]

    def _gone(self, reason: str = "") -> CorruptCheckpointError:
        """Return the error for a file that its process cannot read, and end the process."""
        self._connection.close()
        reason = (
            reason or f"the HDF5 library crashed on it, or needed more than {MAX_CPU_S} s of CPU time for a piece of it"
        )
        return CorruptCheckpointError(f"{self._path}: damaged: {reason}. Use another checkpoint.")
