"""A guard of a TCP server that cannot check its callers: it keeps strangers from connecting.

For a server that asks for no secret, such as TensorFlow's. Of this machine, only processes of this user can connect.
Other machines can connect if their address is in a list. A socket filter drops the other packets in the kernel, before
the server sees them.

At first the filter drops all packets of this machine. A process that wants to connect repeats its first packet after a
second; meanwhile /proc/net/tcp tells which user owns its socket. If this is our user, the filter lets packets without
data from its address and port through, until it is connected. The new connection keeps this filter, so nothing can be
read from it yet: the process may have closed its socket, and a stranger may have taken the port. The filter of the
connection is removed once the same socket is seen at its other end: while a socket is open, no other one has its two
addresses and ports. A process must keep its socket open until the server answers.
"""

from __future__ import annotations

import errno
import logging
import os
import re
import socket
import struct
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from cerebras_tensorflow.runtime.host import socket_filter
from cerebras_tensorflow.runtime.host.socket_filter import Address, Caller, Network, plain

logger = logging.getLogger(__name__)

POLL_S = 0.2
"""The kernel repeats the first packet of a connection after 1, 3 and 7 s."""

LOOK_UP_S = 5.0
"""The addresses of other machines are looked up again after a packet was dropped, but not sooner than this."""

MOST_AT_ONCE = 20
"""Sockets that may connect at the same time; the others wait for the next second. The kernel bounds a filter's size."""

_SYN_SENT = "02"
_End = tuple[Address, int]


@dataclass(frozen=True)
class _Socket:
    """A line of /proc/net/tcp. Each end is an address with a port."""

    local: _End
    remote: _End
    state: str
    user: int
    inode: int


class PortGuard:
    """Guards the sockets of this process that listen at a port, until the process ends or `close` is called.

    Create it after the server listens, and before it accepts connections. Connections from before are closed.

    Args:
        port: The port.
        look_up: Returns the networks from which other machines may connect. It may take long. By default, only this
            machine may.

    Raises:
        OSError: If this process does not listen there, or the kernel has no such filters. Then the port is as before.
    """

    def __init__(self, port: int, look_up: Callable[[], frozenset[Network]] | None = None) -> None:
        self._networks = look_up() if look_up is not None else frozenset()
        self._filter: tuple[frozenset[_Socket], frozenset[Network]] = frozenset(), self._networks
        self._waiting: frozenset[_Socket] = frozenset()  # callers that were admitted, and whose data is kept away yet
        self._port = port
        self._callers = rf"[0-9A-F]+:[0-9A-F]{{4}} [0-9A-F]+:{port:04X}"
        self._dropped, self._closed = threading.Event(), threading.Event()
        with ExitStack() as undo:
            with _sockets_of_this_process(port) as found:
                self._listeners = [one.dup() for one in found if _listens(one)]
                for listener in self._listeners:
                    undo.callback(listener.close)
            if not self._listeners:
                raise OSError(f"this process does not listen at port {port}")
            for listener in self._listeners:
                socket_filter.attach(listener, networks=self._networks)
                undo.callback(socket_filter.detach, listener)
            self._hang_up()
            self._closed.wait(POLL_S)  # the kernel may have been in the middle of a packet
            self._hang_up()
            undo.pop_all()
        self._threads = [threading.Thread(target=self._watch, name="port-guard", daemon=True)]
        if look_up is not None:
            self._threads.append(
                threading.Thread(target=self._look_up, args=(look_up,), name="port-guard-names", daemon=True)
            )
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """Let nobody in any more. Connections stay."""
        self._closed.set()
        self._dropped.set()
        for thread in self._threads:
            thread.join()
        for listener in self._listeners:
            listener.close()
        self._listeners.clear()

    def _hang_up(self) -> None:
        """End the connections that the server has accepted, and those that the kernel has made for it."""
        for listener in self._listeners:
            blocks = os.get_blocking(listener.fileno())
            os.set_blocking(listener.fileno(), False)
            with suppress(BlockingIOError):
                while True:
                    listener.accept()[0].close()
            os.set_blocking(listener.fileno(), blocks)
        with _sockets_of_this_process(self._port) as found:
            for one in found:
                if not _listens(one):
                    socket_filter.attach(one, networks=self._networks)

    def _watch(self) -> None:
        drops, has_told, has_warned = 0, False, False
        while not self._closed.wait(POLL_S):
            before, drops = drops, sum(map(socket_filter.drops, self._listeners))
            is_called = drops != before
            if is_called:
                self._dropped.set()
            try:
                if is_called or self._waiting:  # reading /proc/net/tcp takes 10 ms and more
                    is_stranger = not self._look()
                    if is_stranger and is_called and not has_told:
                        self._tell_of_strangers()
                        has_told = True
                else:
                    self._admit(())
            except OSError as error:  # for want of file descriptors: that may pass
                if not has_warned:
                    logger.warning("port %d: no new connections for the moment (%s); trying again", self._port, error)
                    has_warned = True
        self._networks = frozenset()
        self._admit(())

    def _tell_of_strangers(self) -> None:
        others = ", ".join(sorted(map(str, self._networks))) or "no other machine"
        logger.warning(
            "port %d: refused packets; only processes of user %d on this machine can connect, and %s",
            *(self._port, os.geteuid(), others),
        )

    def _look_up(self, look_up: Callable[[], frozenset[Network]]) -> None:
        """Look up the networks of other machines again, each time that somebody could not connect."""
        while not self._closed.wait(LOOK_UP_S):
            self._dropped.wait()
            self._dropped.clear()
            if not self._closed.is_set():
                self._networks = look_up()

    def _look(self) -> bool:
        """Admit the sockets that call, and let the data of those that are connected through.

        Returns:
            Whether a socket of this user on this machine calls or is connected.
        """
        with _sockets_of_this_process(self._port) as found:  # before the callers: these sockets were open all the time
            connections = {ends: one for one in found if (ends := _ends(one)) is not None}
            callers = [one for one in _tcp_sockets(self._callers) if one.user == os.geteuid()]
            known = {(one.local, one.remote, one.inode) for one in self._waiting}
            waiting = []
            for caller in callers:
                if caller.state == _SYN_SENT or (caller.local, caller.remote, caller.inode) not in known:
                    continue
                connection = connections.get((caller.remote, caller.local))
                if connection is None:
                    waiting.append(caller)  # the server has not accepted it yet
                else:
                    socket_filter.detach(connection)
        admitted = [one for one in callers if one.state == _SYN_SENT][:MOST_AT_ONCE]
        self._admit(admitted)
        self._waiting = frozenset([*waiting, *admitted])
        return bool(callers)

    def _admit(self, callers: Iterable[_Socket]) -> None:
        admitted, networks = frozenset(callers), self._networks
        if self._filter != (admitted, networks):
            ends = [Caller(*one.local, one.remote[0]) for one in admitted]
            for listener in self._listeners:
                socket_filter.attach(listener, ends, networks)
            self._filter = admitted, networks


def _listens(link: socket.socket) -> bool:
    return bool(link.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))


@contextmanager
def _sockets_of_this_process(port: int) -> Iterator[list[socket.socket]]:
    """Give duplicates of the TCP sockets of this process at a port."""
    with ExitStack() as closing:
        found = {}
        for name in os.listdir("/proc/self/fd"):
            try:
                link = os.readlink(f"/proc/self/fd/{name}")
                if not link.startswith("socket:") or link in found:
                    continue
                one = socket.fromfd(int(name), -1, -1)
            except OSError as error:
                if error.errno in (errno.ENOENT, errno.EBADF, errno.ENOTSOCK):  # closed meanwhile
                    continue
                raise
            closing.callback(one.close)
            is_tcp = one.family in (socket.AF_INET, socket.AF_INET6) and one.type == socket.SOCK_STREAM
            if is_tcp and one.getsockname()[1] == port:
                found[link] = one
        yield list(found.values())


def _ends(link: socket.socket) -> tuple[_End, _End] | None:
    """Return the local and the remote end of a connection, as in /proc/net/tcp; None if it has none."""
    try:
        local, remote = link.getsockname(), link.getpeername()
    except OSError:
        return None  # it listens, or is closed
    return (plain(local[0].partition("%")[0]), local[1]), (plain(remote[0].partition("%")[0]), remote[1])


def _tcp_sockets(ends: str) -> list[_Socket]:
    """Return the TCP sockets of this machine.

    Args:
        ends: Pattern of the local and the remote end in /proc/net/tcp.
    """
    found = []
    for name in ("tcp", "tcp6"):
        try:
            lines = re.findall(rf"^ *\d+: {ends} .*$", Path("/proc/net", name).read_text("ascii"), re.MULTILINE)
        except OSError:
            continue  # no IPv6
        for line in lines:
            _, local, remote, state, _, _, _, user, _, inode, *_ = line.split()
            found.append(_Socket(_end(local), _end(remote), state, int(user), int(inode)))
    return found


def _end(text: str) -> _End:
    """Return the address and port in a line of the kernel.

    >>> _end("0100007F:1F90")
    (IPv4Address('127.0.0.1'), 8080)
    """
    host, port = text.split(":")
    words = (int(host[start : start + 8], 16) for start in range(0, len(host), 8))
    return plain(struct.pack(f"={len(host) // 8}I", *words)), int(port, 16)
