"""Starts the processes of a run on several CSX through MPI, and is rank 0 of their group without loading MPI."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np

from cerebras_tensorflow.errors import CollectiveError
from cerebras_tensorflow.logs import run_log
from cerebras_tensorflow.runtime.collectives import shared_files, tcp
from cerebras_tensorflow.runtime.collectives.interface import Bytes, Collectives
from cerebras_tensorflow.runtime.collectives.placement import MpiCommand, mpi_command
from cerebras_tensorflow.runtime.collectives.relay import SECRET_FILE, SOCKET_FILE, cut, mapped
from cerebras_tensorflow.runtime.collectives.signs_of_life import FIRST_FILE, MPI_LOG, Sign, Watch, describe, host_name
from cerebras_tensorflow.runtime.host import stopping

_POLL_S = 0.2
_WATCH_S = 0.5
_START_LIMIT_S = tcp.START_LIMIT_S + 30.0  # the ranks' own error, which names the one that did not come, is first
_END_LIMIT_S = 60.0  # for an orderly end
_KILL_LIMIT_S = 5.0
_CAUSE_LIMIT_S = 2.0
_SOCKET_PREFIX = "cs_csx_"


def start(size: int, module: str, folder: Path, limit_s: float) -> Collectives:
    """Start processes, on this machine or on the nodes of a Slurm job; return rank 0 of their group.

    Args:
        size: Number of ranks, with this process.
        module: Module whose `main(ranks, folder)` each other process calls.
        folder: Private folder of the run, with what the processes read.
        limit_s: How long a rank may give no sign of life [s].

    Raises:
        SettingsError: If mpi4py or an MPI library is not installed.
        CollectiveError: If the processes do not start.
    """
    command = mpi_command(size, folder)
    if command.nodes:
        run_log.info("The nodes of the CSX: %s.", ", ".join(command.nodes))
    try:
        return _FirstRank(size, command, module, folder, limit_s)
    except _NoAnswerError as error:
        # MPICH 5.0.2 once hung in MPI_Init, before any code of ours, in some hundred starts of our tests.
        if stopping.requested.is_set():
            raise
        run_log.warning("%s. Starting them again.", error)
        return _FirstRank(size, command, module, folder, limit_s)


class _NoAnswerError(CollectiveError):
    """The processes of a group live, but do not answer."""


class _FirstRank(Collectives):
    """Rank 0. It moves its bytes through a process that MPI has started."""

    def __init__(self, size: int, command: MpiCommand, module: str, folder: Path, limit_s: float) -> None:
        super().__init__(0, size)
        self._folder = folder
        self._hosts = ", ".join(command.nodes) or host_name()
        for left in folder.glob("rank-*"):  # of a start that hung
            left.unlink()
        self._watch = Watch(folder, size, limit_s)
        self._failure: str | None = None
        self._shared: set[str] = set()
        self._ended = threading.Event()
        self._lock = threading.RLock()
        self._memory: Bytes = np.empty(0, np.uint8)
        self._sign = Sign(folder / FIRST_FILE)
        secret = secrets.token_bytes(32)
        fd = os.open(folder / SECRET_FILE, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with open(fd, "wb") as file:
            file.write(secret)
        # The path of a socket has at most 107 bytes, so the socket is in a folder of its own, with a link to it.
        self._short = _socket_folder()
        (folder / SOCKET_FILE).unlink(missing_ok=True)
        (folder / SOCKET_FILE).symlink_to(self._short / SOCKET_FILE)
        program = (sys.executable, "-m", f"{__package__}.process", str(folder), module, command.network)
        with open(folder / MPI_LOG, "wb") as log:
            self._process = subprocess.Popen(
                (*command.words, *program),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=command.environment,
                start_new_session=True,
            )
        try:
            self._link = self._accepted(secret)
        except BaseException:
            self._end()
            raise
        finally:  # both ends are connected: if this process is killed later, nothing is left
            shutil.rmtree(self._short, ignore_errors=True)
        threading.Thread(target=self._watch_others, name="cs_csx_watch", daemon=True).start()

    def check(self) -> None:
        """Raise an error if a rank failed. The other ranks have ended then."""
        if self._failure is not None:
            raise CollectiveError(self._failure)

    def abort(self, reason: str) -> None:
        """End all ranks."""
        self._ended.set()
        self._failure = self._failure or f"rank 0 failed: {reason}"
        self._end()

    def close(self) -> None:
        """Let the others end, which have been told to."""
        is_orderly = self._failure is None
        self._ended.set()
        if is_orderly:
            self._failure = "the run has ended"
            with suppress(OSError):
                self._link.sendall(json.dumps({"end": True}).encode())
            self._wait_for_end()
        self._end()

    def _note_shared_files(self) -> None:
        """Note the files of the process on this machine that moves our bytes; MPI may end it before `_end`."""
        places = self._watch.places()[:1]
        self._shared.update(*(shared_files.shared_files(pid) for host, pid in places if host == host_name()))

    def _wait_for_end(self) -> None:
        """Wait until all have ended, or one of them hangs."""
        begin = time.monotonic()
        while self._watch.hanging() is None and time.monotonic() - begin < _limit(_END_LIMIT_S):
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(_WATCH_S)
                return

    def _watch_others(self) -> None:
        """End all ranks when one has ended or hangs, even while this process computes."""
        while not self._ended.wait(_WATCH_S):
            with self._lock:
                self._note_shared_files()
                failure = self._watch.failure() if not self._ended.is_set() else None
                if failure is not None:
                    self._ended.set()
                    self._failure = self._failure or failure
                    self._end()

    def _exchange(self, outgoing: Sequence[Bytes], incoming: Sequence[Bytes]) -> None:
        self.check()
        np.copyto(incoming[self.rank], outgoing[self.rank])  # the relay needs only what goes to others
        outgoing, incoming = _for_others(outgoing, self.rank), _for_others(incoming, self.rank)
        sizes = [part.nbytes for part in outgoing], [part.nbytes for part in incoming]
        command = {"memory": 0, "outgoing": sizes[0], "incoming": sizes[1]}
        needed, fds = sum(map(sum, sizes)), []
        if needed > self._memory.nbytes:
            command["memory"] = size = 1 << (max(needed, mmap_page()) - 1).bit_length()
            fd = os.memfd_create("cs_csx", os.MFD_CLOEXEC)
            os.ftruncate(fd, size)
            fds = [os.dup(fd)]
            self._memory = mapped(fd, size)
        for part, place in zip(outgoing, cut(self._memory, sizes[0]), strict=True):
            np.copyto(place, part)
        try:
            socket.send_fds(self._link, [json.dumps(command).encode()], fds)
            answer = self._answer()
        except OSError:
            answer = b""
        finally:
            for fd in fds:
                os.close(fd)
        self._check(answer)
        for part, place in zip(incoming, cut(self._memory, sizes[1], sum(sizes[0])), strict=True):
            np.copyto(part, place)

    def _answer(self) -> bytes:
        """Return the relay's answer; empty if it is gone or a rank failed."""
        while True:
            try:
                return self._link.recv(1 << 16)
            except TimeoutError:
                if self._failure is not None or self._process.poll() is not None:
                    return b""

    def _check(self, answer: bytes) -> None:
        """Check the relay's answer.

        Raises:
            CollectiveError: If there is none, or it is an error. The group then ends.
        """
        error = json.loads(answer)["error"] if answer else "its connection to the first CSX has ended"
        if error is None:
            return
        with self._lock:
            self._ended.set()
            self._failure = self._failure or self._cause() or describe(self._folder, 0, f"failed: {error}")
            self._end()
        raise CollectiveError(self._failure)

    def _cause(self) -> str | None:
        """Return which rank failed, if its process ends within some seconds; rank 0 ends if it loses its connection."""
        end = time.monotonic() + _CAUSE_LIMIT_S
        while (failure := self._watch.failure()) is None and time.monotonic() < end:
            time.sleep(_POLL_S)
        return failure

    def _accepted(self, secret: bytes) -> socket.socket:
        """Return the connection of the relay.

        Raises:
            CollectiveError: If it does not come.
        """
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
            listener.bind(str(self._short / SOCKET_FILE))
            listener.listen(1)
            listener.settimeout(_POLL_S)
            begin = time.monotonic()
            while time.monotonic() - begin < _limit(_START_LIMIT_S) and self._process.poll() is None:
                with suppress(TimeoutError):
                    link, _ = listener.accept()
                    link.settimeout(_POLL_S * 50)
                    if secrets.compare_digest(link.recv(len(secret)), secret):
                        link.settimeout(_POLL_S)
                        return link
                    link.close()
        log = self._folder / MPI_LOG
        text = log.read_text(errors="replace").strip()
        error = _NoAnswerError if self._process.poll() is None else CollectiveError
        said = text[-500:] or "it is empty"
        raise error(f"the processes of {self.size} CSX did not start on {self._hosts}; {log}: {said}")

    def _end(self) -> None:
        """End all processes."""
        self._sign.close()  # each process ends when this sign has ended
        with suppress(AttributeError, OSError):
            self._link.close()
        self._note_shared_files()
        for host, pid in self._watch.places():
            if host == host_name() and self._process.poll() is None:
                with suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
        shared_files.remove(self._shared)
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(_KILL_LIMIT_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()


def _limit(limit_s: float) -> float:
    """Return how long to wait for processes [s]."""
    return min(limit_s, stopping.ANSWER_LIMIT_S) if stopping.requested.is_set() else limit_s


def mmap_page() -> int:
    """Return the size of a page of memory [B]."""
    return os.sysconf("SC_PAGE_SIZE")


def _socket_folder() -> Path:
    """Make a folder for a socket; remove those of runs that were killed at their start."""
    for left in Path(tempfile.gettempdir()).glob(f"{_SOCKET_PREFIX}*"):
        with suppress(OSError):
            found = os.lstat(left)
            is_over = time.time() - found.st_mtime > 2 * _START_LIMIT_S  # no start takes that long
            if is_over and stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid():
                shutil.rmtree(left)
    return Path(tempfile.mkdtemp(prefix=_SOCKET_PREFIX))


def _for_others(parts: Sequence[Bytes], rank: int) -> list[Bytes]:
    """Return the parts, with none for a rank itself."""
    return [part[:0] if number == rank else part for number, part in enumerate(parts)]
