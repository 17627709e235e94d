"""runtime.host.port_guard: who can connect from another machine, and who from this one."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.machines import Machines, machines

SERVER = """
import socket, sys, threading
from ipaddress import ip_network
from cerebras_tensorflow.runtime.host import port_guard
from cerebras_tensorflow.runtime.host.cluster_hosts import ClusterHosts

port_guard.LOOK_UP_S = 0.2
answers = iter([[], ["10.77.0.2"]])  # a machine whose name has an address only after a while
hosts = [
    ClusterHosts(["10.77.0.2", "fd77::2", "no.such.host.invalid"]).look_up,
    ClusterHosts(["10.77.0.2"], [ip_network("0.0.0.0/0"), ip_network("fd77::2/127")]).look_up,
    lambda: ClusterHosts(next(answers, ["10.77.0.2"])).look_up(),
    None,
]

def echo(link):
    while data := link.recv(100):
        link.sendall(data)

def serve(listener):
    while True:
        threading.Thread(target=echo, args=(listener.accept()[0],), daemon=True).start()

for look_up in hosts:
    listener = socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True)
    port = listener.getsockname()[1]
    port_guard.PortGuard(port, look_up)
    threading.Thread(target=serve, args=(listener,), daemon=True).start()
    print(port, flush=True)
sys.stdin.read()
"""

CALLER = """
import os, socket, sys
from concurrent.futures import ThreadPoolExecutor
import encodings.idna  # not readable as another user

def call(end):
    try:
        with socket.create_connection(end, timeout=2.5) as link:
            link.sendall(b"mine")
            return "in" if link.recv(10) == b"mine" else "another answer"
    except TimeoutError:
        return "out"

user, *ends = sys.argv[1:]
ends = [(one.rpartition(" ")[0], int(one.rpartition(" ")[2])) for one in ends]
os.setgroups([])
os.setuid(int(user))
with ThreadPoolExecutor(len(ends)) as pool:
    print(*pool.map(call, ends))
"""


@pytest.fixture(scope="module")
def network() -> Iterator[Machines]:
    with machines("server", "task", "stranger") as found:
        yield found


EXPECTED = {
    # caller, user: guard -> IP versions of its own addresses with which the caller gets in
    ("task", 65534): {"tasks": {4, 6}, "networks": {4, 6}, "late": {4}, "none": set()},
    ("stranger", 0): {"tasks": set(), "networks": {4, 6}, "late": set(), "none": set()},
    ("server", 65534): {"tasks": set(), "networks": set(), "none": set()},
    ("server", 0): {"tasks": {4, 6}, "networks": {4, 6}, "none": {4, 6}},
}


def test_only_the_machines_of_a_cluster_and_this_user_can_connect(network: Machines) -> None:
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with network.start("server", sys.executable, "-c", SERVER, **pipes) as server:
        assert server.stdin is not None and server.stdout is not None
        ports = {guard: int(server.stdout.readline()) for guard in ("tasks", "networks", "late", "none")}
        ends: dict[tuple[str, int], list[tuple[str, str, int]]] = {}
        for (name, user), guards in EXPECTED.items():
            addresses = [("10.77.0.1", 4), ("fd77::1", 6)] + [("127.0.0.1", 4), ("::1", 6)] * (name == "server")
            ends[name, user] = [(guard, *address) for guard in guards for address in addresses]
        calls = {
            (name, user): network.start(
                name,
                *(sys.executable, "-c", CALLER, str(user)),
                *(f"{address} {ports[guard]}" for guard, address, _ in ends[name, user]),
                stdout=subprocess.PIPE,
            )
            for name, user in EXPECTED
        }
        answers = {caller: call.communicate(timeout=60)[0].split() for caller, call in calls.items()}
        server.stdin.close()
    for caller, guards in EXPECTED.items():
        expected = {end: "in" if end[2] in guards[end[0]] else "out" for end in ends[caller]}
        assert dict(zip(ends[caller], answers[caller], strict=True)) == expected, caller
