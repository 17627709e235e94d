"""The address on which a server of a launch listens: loopback, or one that the launch's other nodes can reach."""

from __future__ import annotations

import socket

from cerebras_tensorflow.config import env

LOOPBACK = "127.0.0.1"


def target(address: str, port: int) -> str:
    """Return an IP address and a port as gRPC writes them.

    >>> target("10.0.0.1", 9), target("fd00::1", 9)
    ('10.0.0.1:9', '[fd00::1]:9')
    """
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


def place(target: str) -> tuple[str, int]:
    """Return what `target` was made of.

    >>> place("10.0.0.1:9"), place("[fd00::1]:9")
    (('10.0.0.1', 9), ('fd00::1', 9))
    """
    address, _, port = target.rpartition(":")
    return address.strip("[]"), int(port)


def listen_address(environment: env.Environment | None = None) -> str:
    """Return the IP address on which a server of this launch listens and at which the chief connects to it.

    On one machine this is loopback. Under Slurm it is the interface towards the node that started the launch, so that
    no server listens on the node's other networks.
    """
    environment = env.read() if environment is None else environment
    if not environment.is_under_slurm:
        return LOOPBACK
    launcher = environment.slurm_launch_address
    if launcher is None:
        return socket.gethostbyname(socket.gethostname())
    family = socket.AF_INET6 if ":" in launcher else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect((launcher, 9))  # UDP: sends no packet; the kernel only chooses the interface
        return str(probe.getsockname()[0])
