"""Filters of TCP sockets in the kernel: the packets that a socket sees. The kernel drops the others, and counts them.

A filter is a program of classic BPF (linux/filter.h). A packet of a TCP socket begins at its TCP header.
"""

from __future__ import annotations

import ctypes
import errno
import ipaddress
import socket
import struct
from collections.abc import Iterable
from typing import NamedTuple

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

_SO_ATTACH_FILTER, _SO_DETACH_FILTER, _SO_MEMINFO = 26, 27, 55
_DROPS = struct.Struct("=32xI")  # of struct sk_meminfo
_WORD = 0xFFFFFFFF
_NETWORK_HEADER = -0x100000 & _WORD  # SKF_NET_OFF
_DEVICE = -0x1000 + 8 & _WORD  # SKF_AD_OFF + SKF_AD_IFINDEX
_LOOPBACK_DEVICE = 1  # the same in every network namespace
_LOAD_WORD, _LOAD_HALF, _LOAD_BYTE, _LOAD_SIZE, _STORE_X = 0x20, 0x28, 0x30, 0x80, 0x07
_AND, _SHIFT_RIGHT, _SHIFT_LEFT = 0x54, 0x74, 0x64
_JUMP, _JUMP_IF_EQUAL, _JUMP_IF_X, _RETURN = 0x05, 0x15, 0x1D, 0x06
_ACCEPT, _DROP = (_RETURN, 0, 0, _WORD), (_RETURN, 0, 0, 0)
_Instruction = tuple[int, int, int, int]
_SOURCE = {4: 12, 6: 8}
_TARGET = {4: 16, 6: 24}
"""Where an IP header has its addresses [B]."""


class Caller(NamedTuple):
    """A socket that wants to connect.

    Attributes:
        source: Its address.
        port: Its port.
        target: The address to which it connects.
    """

    source: Address
    port: int
    target: Address


class _Check(NamedTuple):
    """A packet passes if the value at a place, and-ed with a mask, is the expected one."""

    load: int
    place: int
    mask: int
    expected: int


def attach(link: socket.socket, callers: Iterable[Caller] = (), networks: Iterable[Network] = ()) -> None:
    """Let a socket see only packets without data from callers, and all packets of other machines in these networks.

    A connection keeps the filter that its listening socket had.

    Raises:
        OSError: If the kernel has no such filters, or no memory for it.
    """
    program = _program(callers, networks)
    code = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *one) for one in program))
    link.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, struct.pack("@HP", len(program), ctypes.addressof(code)))


def detach(link: socket.socket) -> None:
    """Remove the filter of a socket, if it has one."""
    try:
        link.setsockopt(socket.SOL_SOCKET, _SO_DETACH_FILTER, 0)
    except OSError as error:
        if error.errno != errno.ENOENT:
            raise


def drops(link: socket.socket) -> int:
    """Return how many packets the filter of a socket has kept away."""
    (number,) = _DROPS.unpack(link.getsockopt(socket.SOL_SOCKET, _SO_MEMINFO, _DROPS.size))
    return int(number)


def plain(address: str | bytes) -> Address:
    """Return an address. An IPv6 socket that speaks IPv4 has an IPv4 address."""
    found = ipaddress.ip_address(address)
    return (found.ipv4_mapped or found) if isinstance(found, ipaddress.IPv6Address) else found


def _program(callers: Iterable[Caller], networks: Iterable[Network]) -> list[_Instruction]:
    of_networks: dict[int, list[_Instruction]] = {4: [], 6: []}
    of_callers: dict[int, list[_Instruction]] = {4: [], 6: []}
    for network in networks:
        of_networks[network.version] += _accept_if(_is_in(network, _SOURCE))
    for caller in callers:
        source, target = ipaddress.ip_network(caller.source), ipaddress.ip_network(caller.target)
        port = _Check(_LOAD_HALF, 0, 0xFFFF, caller.port)
        of_callers[source.version] += _accept_if([*_is_in(source, _SOURCE), *_is_in(target, _TARGET), port])
    result: list[_Instruction] = []
    if any(
        of_networks.values()
    ):  # a packet of this machine, whatever its addresses are, arrives by the loopback device
        rules = _by_version(of_networks)
        result += [(_LOAD_WORD, 0, 0, _DEVICE), (_JUMP_IF_EQUAL, 0, 1, _LOOPBACK_DEVICE), (_JUMP, 0, 0, len(rules))]
        result += rules
    header_bytes = [(_LOAD_BYTE, 0, 0, 12), (_SHIFT_RIGHT, 0, 0, 4), (_SHIFT_LEFT, 0, 0, 2), (_STORE_X, 0, 0, 0)]
    has_no_data = [*header_bytes, (_LOAD_SIZE, 0, 0, 0), (_JUMP_IF_X, 1, 0, 0), _DROP]
    return [*result, *has_no_data, *_by_version(of_callers), _DROP]


def _by_version(rules: dict[int, list[_Instruction]]) -> list[_Instruction]:
    """Return the rules of each IP version, behind a jump for packets of the other one."""
    result: list[_Instruction] = []
    for version, own in rules.items():
        result += [(_LOAD_BYTE, 0, 0, _NETWORK_HEADER), (_SHIFT_RIGHT, 0, 0, 4)]
        result += [(_JUMP_IF_EQUAL, 1, 0, version), (_JUMP, 0, 0, len(own)), *own]
    return result


def _accept_if(checks: list[_Check]) -> list[_Instruction]:
    """Return instructions that accept a packet which passes all checks, and go on after them with any other."""
    result: list[_Instruction] = []
    for number, check in enumerate(checks, start=1):
        to_end = 3 * (len(checks) - number) + 1
        result += [(check.load, 0, 0, check.place), (_AND, 0, 0, check.mask)]
        result.append((_JUMP_IF_EQUAL, 0, to_end, check.expected))
    return [*result, _ACCEPT]


def _is_in(network: Network, places: dict[int, int]) -> list[_Check]:
    """Return checks of the words of an address, for those that the network fixes."""
    mask, address = int(network.netmask), int(network.network_address)
    start = _NETWORK_HEADER + places[network.version]
    shifts = range(network.max_prefixlen - 32, -1, -32)
    words = [
        _Check(_LOAD_WORD, start + 4 * number, mask >> shift & _WORD, address >> shift & _WORD)
        for number, shift in enumerate(shifts)
    ]
    return [word for word in words if word.mask]
