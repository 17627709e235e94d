"""A door before a TCP server that cannot check its callers: only processes of this machine and this user come in.

For a server that asks for no secret, such as TensorFlow's. A socket filter drops packets in the kernel, before the
server sees them. At first it drops all. A process that wants to connect repeats its first packet after a second;
meanwhile /proc/net/tcp tells which user owns its socket. If this is our user, the filter lets packets without data from
its address and port through, until it is connected. The new connection keeps this filter, so nothing can be read from
it yet: the process may have closed its socket, and a stranger may have taken the port. The filter of the connection is
removed once the same socket is seen at its other end: while a socket is open, no other one has its two addresses and
ports. A process must keep its socket open until the server answers.
"""

from __future__ import annotations

import ctypes
import errno
import ipaddress
import logging
import os
import re
import socket
import struct
import threading
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

logger = logging.getLogger(__name__)

POLL_S = 0.2
"""The kernel repeats the first packet of a connection after 1, 3 and 7 s."""

MOST_AT_ONCE = 50
"""Sockets that may connect at the same time; the others wait for the next second."""

_SO_ATTACH_FILTER, _SO_DETACH_FILTER, _SO_MEMINFO = 26, 27, 55
_DROPS = struct.Struct("=32xI")  # of struct sk_meminfo
_SYN_SENT = "02"
_NETWORK_HEADER = -0x100000 & 0xFFFFFFFF  # SKF_NET_OFF
_ACCEPT = 0xFFFFFFFF
# Classic BPF, linux/filter.h. A packet of a TCP socket begins at its TCP header.
_LOAD_WORD, _LOAD_HALF, _LOAD_BYTE, _LOAD_SIZE, _STORE_X = 0x20, 0x28, 0x30, 0x80, 0x07
_SHIFT_LEFT, _SHIFT_RIGHT, _JUMP_IF_EQUAL, _JUMP_IF_X, _RETURN = 0x64, 0x74, 0x15, 0x1D, 0x06
_Instruction = tuple[int, int, int, int]


@dataclass(frozen=True)
class _Socket:
    """A line of /proc/net/tcp. An address is IPv4, as an integer, with a port."""

    local: tuple[int, int]
    remote: tuple[int, int]
    state: str
    user: int
    inode: int


class SameUserDoor:
    """Guards the sockets of this process that listen at a port, until the process ends or `close` is called.

    Create it after the server listens, and before it accepts connections. Connections from before are closed.

    Args:
        port: The port.

    Raises:
        OSError: If this process does not listen there, or the kernel has no such filters. Then the port is as before.
    """

    def __init__(self, port: int) -> None:
        self._admitted: frozenset[_Socket] = frozenset()
        self._waiting: frozenset[_Socket] = frozenset()  # callers that were admitted, and whose data is kept away yet
        self._port = port
        self._callers = rf"[0-9A-F]+:[0-9A-F]{{4}} [0-9A-F]+:{port:04X}"
        with ExitStack() as undo:
            with _sockets_of_this_process(port) as found:
                self._listeners = [one.dup() for one in found if _listens(one)]
                for listener in self._listeners:
                    undo.callback(listener.close)
            if not self._listeners:
                raise OSError(f"this process does not listen at port {port}")
            for listener in self._listeners:
                _attach(listener, _program(()))
                undo.callback(_detach, listener)
            self._closed = threading.Event()
            self._hang_up()
            self._closed.wait(POLL_S)  # the kernel may have been in the middle of a packet
            self._hang_up()
            undo.pop_all()
        self._thread = threading.Thread(target=self._watch, name="same-user-door", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Let nobody in any more. Connections stay."""
        self._closed.set()
        self._thread.join()
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
                    _attach(one, _program(()))

    def _watch(self) -> None:
        drops, has_warned = 0, False
        while not self._closed.wait(POLL_S):
            before, drops = drops, sum(_drops(listener) for listener in self._listeners)
            if drops != before or self._waiting:  # reading /proc/net/tcp takes 10 ms and more
                try:
                    self._look()
                except OSError as error:  # for want of file descriptors: that may pass
                    if not has_warned:
                        logger.warning(
                            "the door of port %d cannot admit callers now (%s); it tries again", self._port, error
                        )
                        has_warned = True
        self._admit(())

    def _look(self) -> None:
        """Admit the sockets that call, and let the data of those that are connected through."""
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
                    _detach(connection)
        self._admit([one for one in callers if one.state == _SYN_SENT][:MOST_AT_ONCE])
        self._waiting = frozenset([*waiting, *self._admitted])

    def _admit(self, callers: Iterable[_Socket]) -> None:
        admitted = frozenset(callers)
        if admitted != self._admitted:
            for listener in self._listeners:
                _attach(listener, _program(sorted((*one.local, one.remote[0]) for one in admitted)))
            self._admitted = admitted


def is_of_this_machine(hosts: Iterable[str]) -> bool:
    """Return whether every host name or address is one of this machine."""
    return all(_is_local(host) for host in hosts)


def _is_local(host: str) -> bool:
    try:
        found = socket.getaddrinfo(host, 0, type=socket.SOCK_DGRAM)
        for family, kind, _, _, address in found:
            with socket.socket(family, kind) as probe:
                probe.bind(address)  # only an address of this machine can be bound
                if ipaddress.ip_address(str(address[0])).is_unspecified:
                    return False
    except OSError:
        return False
    return bool(found)


def _program(admitted: Iterable[tuple[int, int, int]]) -> list[_Instruction]:
    """Return a filter for packets without data from these addresses and ports to these addresses, all IPv4."""
    result: list[_Instruction] = []
    for source, port, target in admitted:
        checks = [
            (_LOAD_WORD, _NETWORK_HEADER + 12, source),
            (_LOAD_WORD, _NETWORK_HEADER + 16, target),
            (_LOAD_HALF, 0, port),
        ]
        for number, (load, place, expected) in enumerate(checks):
            to_next = 2 * (len(checks) - 1 - number) + 1
            result += [(load, 0, 0, place), (_JUMP_IF_EQUAL, 0, to_next, expected)]
        result.append((_RETURN, 0, 0, _ACCEPT))
    drop = (_RETURN, 0, 0, 0)
    is_ipv4 = [(_LOAD_BYTE, 0, 0, _NETWORK_HEADER), (_SHIFT_RIGHT, 0, 0, 4), (_JUMP_IF_EQUAL, 1, 0, 4), drop]
    header_bytes = [(_LOAD_BYTE, 0, 0, 12), (_SHIFT_RIGHT, 0, 0, 4), (_SHIFT_LEFT, 0, 0, 2), (_STORE_X, 0, 0, 0)]
    has_no_data = [*header_bytes, (_LOAD_SIZE, 0, 0, 0), (_JUMP_IF_X, 1, 0, 0), drop]
    return [*is_ipv4, *has_no_data, *result, drop]


def _attach(link: socket.socket, program: list[_Instruction]) -> None:
    code = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *one) for one in program))
    link.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, struct.pack("@HP", len(program), ctypes.addressof(code)))


def _detach(link: socket.socket) -> None:
    """Remove the filter of a socket, if it has one."""
    try:
        link.setsockopt(socket.SOL_SOCKET, _SO_DETACH_FILTER, 0)
    except OSError as error:
        if error.errno != errno.ENOENT:
            raise


def _drops(link: socket.socket) -> int:
    """Return how many packets the filter of a socket has kept away."""
    (number,) = _DROPS.unpack(link.getsockopt(socket.SOL_SOCKET, _SO_MEMINFO, _DROPS.size))
    return int(number)


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


def _ends(link: socket.socket) -> tuple[tuple[int, int], tuple[int, int]] | None:
    """Return the local and the remote address of a connection, IPv4, as in /proc/net/tcp; None if it has none."""
    ends = []
    try:
        for host, port, *_ in (link.getsockname(), link.getpeername()):
            address = ipaddress.ip_address(host.partition("%")[0])
            ipv4 = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else address
            if ipv4 is None:
                return None
            ends.append((int(ipv4), int(port)))
    except OSError:
        return None  # it listens, or is closed
    return ends[0], ends[1]


def _tcp_sockets(ends: str) -> list[_Socket]:
    """Return the TCP sockets of this machine with IPv4 addresses.

    Args:
        ends: Pattern of the local and the remote address in /proc/net/tcp.
    """
    found = []
    for name in ("tcp", "tcp6"):
        try:
            lines = re.findall(rf"^ *\d+: {ends} .*$", Path("/proc/net", name).read_text("ascii"), re.MULTILINE)
        except OSError:
            continue  # no IPv6
        for line in lines:
            _, local, remote, state, _, _, _, user, _, inode, *_ = line.split()
            try:
                found.append(_Socket(_address(local), _address(remote), state, int(user), int(inode)))
            except ValueError:
                continue  # IPv6
    return found


def _address(text: str) -> tuple[int, int]:
    """Return the IPv4 address and port in a line of the kernel.

    Raises:
        ValueError: If it is an IPv6 address.

    >>> _address("0100007F:1F90") == (0x7F000001, 8080)
    True
    """
    host, port = text.split(":")
    words = struct.pack(f"={len(host) // 8}I", *(int(host[start : start + 8], 16) for start in range(0, len(host), 8)))
    if len(words) == 16:
        mapped = ipaddress.IPv6Address(words).ipv4_mapped
        if mapped is None and any(words):
            raise ValueError(f"{text} is an IPv6 address")
        return (int(mapped) if mapped is not None else 0), int(port, 16)
    return int.from_bytes(words, "big"), int(port, 16)
