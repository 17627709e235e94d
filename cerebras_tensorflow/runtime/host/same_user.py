"""A door before a TCP server that cannot check its callers: only processes of this machine and this user come in.

For a server that asks for no secret, such as TensorFlow's. A socket filter drops packets in the kernel, before the
server sees them. At first it drops all. A process that wants to connect repeats its first packet after a second;
meanwhile /proc/net/tcp tells which user owns its socket. If this is our user, the filter lets the packets of this one
socket through, until it is connected. The new connection keeps the filter with which it was made. No other socket can
have the same two addresses and ports meanwhile.
"""

from __future__ import annotations

import ctypes
import ipaddress
import os
import re
import socket
import struct
import threading
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

POLL_S = 0.2
"""The kernel repeats the first packet of a connection after 1, 3 and 7 s."""

MOST_AT_ONCE = 50
"""Sockets that may connect at the same time; the others wait for the next second."""

_SO_ATTACH_FILTER, _SO_MEMINFO = 26, 55
_DROPS = struct.Struct("=32xI")  # of struct sk_meminfo
_SYN_SENT, _LISTEN = "02", "0A"
_NETWORK_HEADER = -0x100000 & 0xFFFFFFFF  # SKF_NET_OFF
_ACCEPT = 0xFFFFFFFF
# Classic BPF, linux/filter.h. A packet of a TCP socket begins at its TCP header.
_LOAD_WORD, _LOAD_HALF, _LOAD_BYTE = 0x20, 0x28, 0x30
_SHIFT_RIGHT, _JUMP_IF_EQUAL, _RETURN = 0x74, 0x15, 0x06
_Instruction = tuple[int, int, int, int]


@dataclass(frozen=True)
class _Socket:
    """A line of /proc/net/tcp. An address is IPv4, as an integer, with a port."""

    local: tuple[int, int]
    remote: tuple[int, int]
    user: int
    inode: int


class SameUserDoor:
    """Guards the sockets of this process that listen at a port, until the process ends or `close` is called.

    Create it after the server listens, and before it answers calls.

    Args:
        port: The port.

    Raises:
        OSError: If this process does not listen there, or the kernel has no such filters.
    """

    def __init__(self, port: int) -> None:
        self._admitted: frozenset[_Socket] = frozenset()
        mine = _sockets_of_this_process()
        at_port = rf"[0-9A-F]+:{port:04X} [0-9A-F]+:[0-9A-F]{{4}}"
        self._listeners = [os.dup(mine[one.inode]) for one in _tcp_sockets(f"{at_port} {_LISTEN}") if one.inode in mine]
        if not self._listeners:
            raise OSError(f"this process does not listen at port {port}")
        for descriptor in self._listeners:
            _drops(descriptor)  # a kernel that does not count them could let nobody in
            _attach(descriptor, _program(()))
        # The server may have accepted connections already; the filter cuts these off as well.
        mine = _sockets_of_this_process()
        for one in _tcp_sockets(f"{at_port} [0-9A-F]{{2}}"):
            if one.inode in mine:
                _attach(mine[one.inode], _program(()))
        self._calling = rf"[0-9A-F]+:[0-9A-F]{{4}} [0-9A-F]+:{port:04X} {_SYN_SENT}"
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="same-user-door", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Let nobody in any more. Connections stay."""
        self._closed.set()
        self._thread.join()
        for descriptor in self._listeners:
            os.close(descriptor)
        self._listeners.clear()

    def _watch(self) -> None:
        drops = 0
        while not self._closed.wait(POLL_S):
            before, drops = drops, sum(_drops(descriptor) for descriptor in self._listeners)
            if drops != before or self._admitted:  # reading /proc/net/tcp takes 10 ms and more
                self._admit(_tcp_sockets(self._calling))
        self._admit(())

    def _admit(self, callers: Iterable[_Socket]) -> None:
        admitted = frozenset([one for one in callers if one.user == os.geteuid()][:MOST_AT_ONCE])
        if admitted != self._admitted:
            for descriptor in self._listeners:
                _attach(descriptor, _program(sorted((*one.local, one.remote[0]) for one in admitted)))
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
    """Return a filter for the packets from these addresses and ports to these addresses, all IPv4."""
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
    is_ipv4 = [(_LOAD_BYTE, 0, 0, _NETWORK_HEADER), (_SHIFT_RIGHT, 0, 0, 4), (_JUMP_IF_EQUAL, 1, 0, 4)]
    return [*is_ipv4, (_RETURN, 0, 0, 0), *result, (_RETURN, 0, 0, 0)]


def _attach(descriptor: int, program: list[_Instruction]) -> None:
    code = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *one) for one in program))
    with socket.socket(fileno=os.dup(descriptor)) as link:
        link.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, struct.pack("@HP", len(program), ctypes.addressof(code)))


def _drops(descriptor: int) -> int:
    """Return how many packets the filter of a socket has kept away."""
    with socket.socket(fileno=os.dup(descriptor)) as link:
        (number,) = _DROPS.unpack(link.getsockopt(socket.SOL_SOCKET, _SO_MEMINFO, _DROPS.size))
    return int(number)


def _sockets_of_this_process() -> dict[int, int]:
    """Return a descriptor for the inode of each socket."""
    found = {}
    for name in os.listdir("/proc/self/fd"):
        try:
            link = re.fullmatch(r"socket:\[(\d+)\]", os.readlink(f"/proc/self/fd/{name}"))
        except OSError:
            continue  # closed meanwhile
        if link is not None:
            found[int(link[1])] = int(name)
    return found


def _tcp_sockets(ends: str) -> list[_Socket]:
    """Return the TCP sockets of this machine with IPv4 addresses.

    Args:
        ends: Pattern of the local address, the remote address and the state in /proc/net/tcp.
    """
    found = []
    for name in ("tcp", "tcp6"):
        try:
            lines = re.findall(rf"^ *\d+: {ends} .*$", Path("/proc/net", name).read_text("ascii"), re.MULTILINE)
        except OSError:
            continue  # no IPv6
        for line in lines:
            _, local, remote, _, _, _, _, user, _, inode, *_ = line.split()
            try:
                found.append(_Socket(_address(local), _address(remote), int(user), int(inode)))
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
