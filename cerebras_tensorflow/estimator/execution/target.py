"""Where a run executes: the execution mode and the simulated system."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from cerebras_tensorflow.config import env
from cerebras_tensorflow.config.env import WEIGHT_STREAMING
from cerebras_tensorflow.estimator.config.run_settings import RunSettings
from cerebras_tensorflow.logs import run_log
from cerebras_tensorflow.system import registry
from cerebras_tensorflow.system.interface import System


@dataclass(frozen=True)
class Target:
    """Where a run executes.

    Attributes:
        mode: "pipelined" or "weight_streaming".
        is_cs: Whether the user asked for a CS system, so that its documented restrictions apply.
        system: The simulated system; None: only the CPU.
    """

    mode: str
    is_cs: bool
    system: System | None


def choose_target(settings: RunSettings, use_cs: bool) -> Target:
    """Return the target of a run: the interpreter decides the mode, cs_ip the system.

    Weight streaming always runs on a simulated system. Pipelined mode without cs_ip runs only on the CPU.

    Raises:
        SystemNotFoundError: If no simulated system answers at cs_ip.
    """
    if settings.execution_mode is not None:  # 1.6 to 1.8: the config decides the mode, use_cs the system
        on_system = Target(settings.execution_mode, True, registry.find(None)) if use_cs else None
        return on_system or Target(env.PIPELINED, False, None)
    environment = env.read()
    cs_ip = (settings.cs_ip or environment.k8s_cs_ip) if use_cs else None
    mode = environment.execution_mode
    if cs_ip is None and mode != WEIGHT_STREAMING:
        return Target(mode, False, None)
    return Target(mode, cs_ip is not None, registry.find(cs_ip))


@contextmanager
def held(target: Target, description: str, num_csx: int = 1) -> Iterator[None]:
    """Reserve the target's system, and others for several CSX, for one run; wait in the queue if one is busy."""
    if target.system is None:
        yield
        return

    def tell(reason: str) -> None:
        run_log.info("Waiting for the system, to %s: %s.", description, reason)

    with target.system.run(target.mode, description=description, on_wait=tell, num_csx=num_csx):
        yield
