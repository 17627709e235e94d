"""Ranks on several nodes, over connections of our own: both sides prove that they have the secret of the run.

Each rank connects to all lower ranks. After that it listens no more. The bytes are not encrypted.
"""

from __future__ import annotations

import math
import selectors
import socket
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, closing, suppress
from functools import partial
from pathlib import Path

from cerebras_tensorflow.errors import CollectiveError
from cerebras_tensorflow.runtime.collectives.checked import CheckedCollectives
from cerebras_tensorflow.runtime.collectives.interface import Bytes
from cerebras_tensorflow.runtime.collectives.signs_of_life import describe, error_file
from cerebras_tensorflow.runtime.host import entrance, links
from cerebras_tensorflow.runtime.host.announcement import announce, read_announcement
from cerebras_tensorflow.runtime.host.links import LinkEndedError
from cerebras_tensorflow.runtime.host.network import listen_address

START_LIMIT_S = 60.0
_POLL_S = 0.05
_RANK_BYTES = 4
_KEPT = b"k"  # the answer to a caller whose connection is kept


def join(rank: int, size: int, folder: Path, secret: bytes, limit_s: float = 60.0) -> TcpRank:
    """Return this process's rank, connected to all others.

    Args:
        rank: Number of this rank.
        size: Number of ranks.
        folder: Private folder of the run, which all ranks see.
        secret: The secret of the run.
        limit_s: Longest time that a call waits for the other ranks [s]; math.inf: no limit.

    Raises:
        CollectiveError: If a rank does not come.
    """
    return TcpRank(rank, size, folder, _Meeting(rank, size, folder, secret).connections(), limit_s)


def address_file(folder: Path, rank: int) -> Path:
    """Return the file in which a rank announces where it listens."""
    return folder / f"rank-{rank}.address"


class TcpRank(CheckedCollectives):
    """One process of a group, with a connection to each other one."""

    def __init__(
        self, rank: int, size: int, folder: Path, connections: dict[int, socket.socket], limit_s: float = math.inf
    ) -> None:
        super().__init__(rank, size, limit_s)
        self._folder = folder
        self._connections = connections
        for link in connections.values():
            link.setblocking(False)

    def abort(self, reason: str) -> None:
        """Leave the group, and let the others know why."""
        print(f"rank {self.rank} failed: {reason}", file=sys.stderr, flush=True)
        with suppress(OSError):
            error_file(self._folder, self.rank).write_text(f"{reason}.", encoding="utf-8")
        self._failure = f"rank {self.rank} failed: {reason}"
        self.close()

    def finish(self) -> None:
        """Leave the group; what was sent still arrives."""
        self.close()

    def close(self) -> None:
        """Leave the group."""
        super().close()
        for link in self._connections.values():
            link.close()

    def _transfer(self, outgoing: Sequence[Bytes], incoming: Sequence[Bytes]) -> None:
        to_send = {rank: outgoing[rank].data for rank in self._connections}
        to_fill = {rank: incoming[rank].data for rank in self._connections}
        moved_at = time.monotonic()
        with selectors.DefaultSelector() as selector:
            for rank, link in self._connections.items():
                if events := _events(to_send[rank], to_fill[rank]):
                    selector.register(link, events, rank)
            while waiting := selector.get_map():
                ready = selector.select(_POLL_S)
                if ready:
                    moved_at = time.monotonic()
                elif time.monotonic() - moved_at > self._limit_s:
                    late = min(key.data for key in waiting.values())
                    raise CollectiveError(f"rank {late} did not answer within {self._limit_s:g} s")
                for key, _ in ready:
                    rank, link = key.data, self._connections[key.data]
                    to_send[rank], to_fill[rank] = self._moved(rank, link, to_send[rank], to_fill[rank])
                    if (events := _events(to_send[rank], to_fill[rank])) != key.events:
                        selector.modify(link, events, rank) if events else selector.unregister(link)

    def _moved(
        self, rank: int, link: socket.socket, to_send: memoryview, to_fill: memoryview
    ) -> tuple[memoryview, memoryview]:
        """Send and receive what a connection takes and has now; return what is left.

        Raises:
            CollectiveError: If the connection has ended.
        """
        try:
            if to_send:
                with suppress(BlockingIOError):
                    to_send = to_send[link.send(to_send) :]
            if to_fill:
                with suppress(BlockingIOError):
                    count = link.recv_into(to_fill)
                    if not count:
                        raise ConnectionError("it has closed the connection")
                    to_fill = to_fill[count:]
        except OSError as error:
            raise CollectiveError(self._why(rank, error)) from error
        return to_send, to_fill

    def _why(self, rank: int, error: OSError) -> str:
        """Return why another rank's connection ended: its own reason, if it gave one."""
        try:
            what = f"failed: {error_file(self._folder, rank).read_text(encoding='utf-8')}"
        except OSError:
            what = f"lost its connection to rank {self.rank}: {error}"
        return describe(self._folder, rank, what)


class _Meeting:
    """The ranks find each other. Final; used once."""

    def __init__(self, rank: int, size: int, folder: Path, secret: bytes) -> None:
        self._rank = rank
        self._size = size
        self._folder = folder
        self._secret = secret
        self._found: dict[int, socket.socket] = {}
        self._is_over = False
        self._changed = threading.Condition()
        self._end = time.monotonic() + START_LIMIT_S

    def connections(self) -> dict[int, socket.socket]:
        """Return the connection to each other rank.

        Raises:
            CollectiveError: If one does not come.
        """
        address = listen_address()
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        listener = socket.create_server((address, 0), family=family)
        with closing(entrance.Entrance(listener, self._welcome, "cs_meeting")):
            host, port = listener.getsockname()[:2]
            announce(address_file(self._folder, self._rank), {"host": host, "port": port})
            try:
                for owner in range(self._rank):
                    self._keep(owner, self._connected(owner))
                with self._changed:
                    self._changed.wait_for(lambda: len(self._found) == self._size - 1, self._end - time.monotonic())
                    self._is_over = True
                missing = sorted(set(range(self._size)) - {self._rank, *self._found})
                if missing:
                    raise CollectiveError(f"rank {missing[0]} did not come within {START_LIMIT_S:g} s")
            except BaseException:
                self._end_all()
                raise
        return dict(sorted(self._found.items()))

    def _end_all(self) -> None:
        """Close what was found."""
        with self._changed:
            self._is_over = True
            for link in self._found.values():
                link.close()

    def _keep(self, rank: int, link: socket.socket, answer: bytes = b"") -> None:
        """Keep the connection to a rank, in place of an earlier one: a rank calls again if it has lost that one.

        Raises:
            LinkEndedError: If the answer, which says that it is kept, cannot be sent. Then it is not kept.
        """
        with self._changed:
            left = link if self._is_over else self._found.get(rank)
            if not self._is_over:
                links.send(link, answer)
                self._found[rank] = link
            self._changed.notify_all()
        if left is not None:
            left.close()

    def _connected(self, owner: int) -> socket.socket:
        """Return a connection to a lower rank.

        Raises:
            CollectiveError: If it does not come, or is not of this run.
        """
        while (about := read_announcement(address_file(self._folder, owner))) is None:
            if time.monotonic() > self._end:
                raise CollectiveError(f"rank {owner} did not come within {START_LIMIT_S:g} s")
            time.sleep(_POLL_S)
        try:
            return entrance.connect((about["host"], about["port"]), partial(self._prove_to, owner), self._go_on)
        except LinkEndedError as error:
            raise CollectiveError(f"rank {self._rank} cannot connect to rank {owner}: {error}") from error

    def _prove_to(self, owner: int, link: socket.socket, end: float) -> None:
        """Show a lower rank the secret.

        Raises:
            CollectiveError: If that rank does not have it.
        """
        links.send(link, self._rank.to_bytes(_RANK_BYTES, "little"))
        own, theirs = _roles(self._rank, owner)
        if not links.prove(link, self._secret, own, theirs, max(end, self._end)):
            raise CollectiveError(f"rank {owner} does not know the secret of this run")
        links.receive_bytes(link, len(_KEPT), max(end, self._end))

    def _go_on(self, error: LinkEndedError) -> None:
        if time.monotonic() > self._end:
            raise error

    def _welcome(self, link: socket.socket, proving: AbstractContextManager[float]) -> None:
        """Background thread: keep a connection of a higher rank that shows the secret; close any other one."""
        try:
            with proving as end:
                links.tune(link)
                caller = int.from_bytes(links.receive_bytes(link, _RANK_BYTES, end), "little")
                theirs, own = _roles(caller, self._rank)
                is_known = links.prove(link, self._secret, own, theirs, end)
            if is_known and self._rank < caller < self._size:
                self._keep(caller, link, _KEPT)
                return
        except LinkEndedError:
            pass
        link.close()


def _roles(caller: int, owner: int) -> tuple[bytes, bytes]:
    """Return what the caller and the other side sign, so that a proof is of no use between other ranks."""
    return f"rank {caller} calls {owner}".encode(), f"rank {owner} answers {caller}".encode()


def _events(to_send: memoryview, to_fill: memoryview) -> int:
    return (selectors.EVENT_WRITE if to_send else 0) | (selectors.EVENT_READ if to_fill else 0)
