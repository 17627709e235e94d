"""The addresses of the machines of a cluster, from their names."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Iterable

from cerebras_tensorflow.runtime.host.socket_filter import Network, plain


class ClusterHosts:
    """The networks from which the tasks of a cluster call.

    Args:
        hosts: Names and addresses of the machines.
        more: Further networks.
    """

    def __init__(self, hosts: Iterable[str], more: Iterable[Network] = ()) -> None:
        self._more = tuple(more)
        self._known: dict[str, frozenset[Network]] = {host: frozenset() for host in hosts}

    def look_up(self) -> frozenset[Network]:
        """Return the present networks. A name that has no address at the moment keeps those that it had."""
        for host in self._known:
            self._known[host] = _addresses(host) or self._known[host]
        networks = [*self._more, *(one for found in self._known.values() for one in found)]
        four = (one for one in networks if isinstance(one, ipaddress.IPv4Network))
        six = (one for one in networks if isinstance(one, ipaddress.IPv6Network))
        return frozenset([*ipaddress.collapse_addresses(four), *ipaddress.collapse_addresses(six)])


def is_of_this_machine(hosts: Iterable[str]) -> bool:
    """Return whether every host name or address is one of this machine."""
    return all(_is_local(host) for host in hosts)


def _addresses(host: str) -> frozenset[Network]:
    try:
        found = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):  # UnicodeError: it cannot be a name
        return frozenset()
    addresses = (plain(str(address[0]).partition("%")[0]) for *_, address in found)
    return frozenset(ipaddress.ip_network(one) for one in addresses if not one.is_unspecified)


def _is_local(host: str) -> bool:
    try:
        found = socket.getaddrinfo(host, 0, type=socket.SOCK_DGRAM)
        for family, kind, _, _, address in found:
            with socket.socket(family, kind) as probe:
                probe.bind(address)  # only an address of this machine can be bound
                if plain(str(address[0]).partition("%")[0]).is_unspecified:
                    return False
    except (OSError, UnicodeError):
        return False
    return bool(found)
