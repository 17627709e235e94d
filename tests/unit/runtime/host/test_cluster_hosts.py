"""runtime.host.cluster_hosts: the addresses of a cluster's machines."""

from __future__ import annotations

import socket
from ipaddress import ip_network
from typing import Any

import pytest

from cerebras_tensorflow.runtime.host.cluster_hosts import ClusterHosts, is_of_this_machine


def test_addresses_of_this_machine_are_known() -> None:
    assert is_of_this_machine(["127.0.0.1", "localhost", "::1"])
    assert not is_of_this_machine(["127.0.0.1", "203.0.113.1"])
    assert not is_of_this_machine(["0.0.0.0"])
    assert not is_of_this_machine(["no.such.host.invalid"])
    assert not is_of_this_machine(["a" * 70 + ".example"])


def test_a_host_is_a_network_of_its_addresses() -> None:
    hosts = ClusterHosts(["203.0.113.1", "::ffff:203.0.113.2", "fd77::1", "0.0.0.0", "a" * 70, "x..y"])
    assert hosts.look_up() == {ip_network("203.0.113.1"), ip_network("203.0.113.2"), ip_network("fd77::1")}
    more = ClusterHosts(["203.0.113.1", "203.0.114.1"], [ip_network("203.0.113.0/24")])
    assert more.look_up() == {ip_network("203.0.113.0/24"), ip_network("203.0.114.1")}


def test_a_name_keeps_its_addresses_until_it_has_others(monkeypatch: pytest.MonkeyPatch) -> None:
    names = {"worker": "203.0.113.1"}

    def getaddrinfo(host: str, *_: Any, **__: Any) -> list[Any]:
        if host not in names:
            raise socket.gaierror("no name server answers")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (names[host], 0))]

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    hosts = ClusterHosts(["worker", "ps"])
    assert hosts.look_up() == {ip_network("203.0.113.1")}
    names["ps"] = "203.0.113.7"
    del names["worker"]
    assert hosts.look_up() == {ip_network("203.0.113.1"), ip_network("203.0.113.7")}
    names["worker"] = "203.0.113.9"
    assert hosts.look_up() == {ip_network("203.0.113.9"), ip_network("203.0.113.7")}
