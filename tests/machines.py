"""Several machines on this one: network namespaces with a switch between them. Needs root and iproute2."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

ROOT = os.path.dirname(os.path.dirname(__file__))


class Machines:
    """Machines with the addresses 10.77.0.1 and fd77::1, 10.77.0.2 and fd77::2, and so on.

    Args:
        names: Their names.

    Attributes:
        addresses: The IPv4 address of each.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self.addresses = {name: f"10.77.0.{number}" for number, name in enumerate(names, start=1)}
        self._spaces = {name: f"cs{os.getpid()}-{name}" for name in (*names, "switch")}
        for space in self._spaces.values():
            _ip("netns", "add", space)
            _ip("-n", space, "link", "set", "lo", "up")
        switch = self._spaces["switch"]
        _ip("-n", switch, "link", "add", "bridge", "type", "bridge")
        _ip("-n", switch, "link", "set", "bridge", "up")
        for number, name in enumerate(names, start=1):
            one, plug = self._spaces[name], f"plug{number}"
            _ip("-n", one, "link", "add", "eth0", "type", "veth", "peer", "name", plug, "netns", switch)
            _ip("-n", switch, "link", "set", plug, "master", "bridge", "up")
            _ip("-n", one, "addr", "add", f"{self.addresses[name]}/24", "dev", "eth0")
            _ip("-n", one, "addr", "add", f"fd77::{number}/64", "dev", "eth0", "nodad")
            _ip("-n", one, "link", "set", "eth0", "up")

    def start(self, name: str, *words: str, **settings: Any) -> subprocess.Popen[str]:
        """Start a process on a machine."""
        return subprocess.Popen(["ip", "netns", "exec", self._spaces[name], *words], cwd=ROOT, text=True, **settings)

    def close(self) -> None:
        """Remove the machines."""
        for space in self._spaces.values():
            subprocess.run(["ip", "netns", "del", space], check=False, stderr=subprocess.DEVNULL)


@contextmanager
def machines(*names: str) -> Iterator[Machines]:
    """Give machines; skip the test if this user cannot have any."""
    if os.getuid() != 0 or shutil.which("ip") is None:
        pytest.skip("needs root and iproute2, for network namespaces")
    result = None
    try:
        try:
            result = Machines(names)
        except subprocess.CalledProcessError as error:
            pytest.skip(f"this system has no network namespaces: {error.stderr}")
        yield result
    finally:
        if result is not None:
            result.close()


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True)
