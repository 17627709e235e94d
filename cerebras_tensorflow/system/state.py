"""The state of one simulated CS-2, and the changes that an administrator may make to it.

    ACTIVE --standby--> STANDBY --set mode--> STANDBY --activate--> BOOTING --(time passes)--> ACTIVE

Everything here is pure: a state and a moment in, a state out. Rebooting needs no process of its own, since the state
holds the moment at which it ends.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from cerebras_tensorflow.config import env
from cerebras_tensorflow.errors import ExecModeError, SystemStateError
from cerebras_tensorflow.system import facts
from cerebras_tensorflow.version import __version__

ACTIVE = "ACTIVE"
STANDBY = "STANDBY"
BOOTING = "BOOTING"

MODE_TITLES = {env.PIPELINED: "Pipelined", env.WEIGHT_STREAMING: "Weight Streaming"}
"""As the menu of `config execmode setup` writes them; `config execmode show` writes them in capitals."""

INTERPRETERS = {env.PIPELINED: "python", env.WEIGHT_STREAMING: "python-ws"}


@dataclass(frozen=True)
class SystemState:
    """One system.

    Attributes:
        name: What people call it.
        address: host:port that scripts pass as --cs_ip.
        execution_mode: `pipelined` or `weight_streaming`.
        is_mode_pinned: Whether an administrator has chosen the mode; otherwise it follows the run.
        is_standby: Whether it has been put in standby.
        boot_ends_at: Moment at which the latest reboot ends [s since the epoch].
        software_version: Release of ours that was installed when the system last booted; empty: before that was kept.
    """

    name: str
    address: str
    execution_mode: str
    is_mode_pinned: bool
    is_standby: bool = False
    boot_ends_at: float = 0.0
    software_version: str = __version__

    def phase(self, now: float) -> str:
        """Return ACTIVE, STANDBY or BOOTING at a moment [s since the epoch]."""
        if self.is_standby:
            return STANDBY
        # An end that is farther away than a reboot takes was set before the clock went back.
        is_booting = now < self.boot_ends_at <= now + facts.REBOOT_WALL_S.value
        return BOOTING if is_booting else ACTIVE


def to_standby(state: SystemState) -> SystemState:
    """Return the system in standby.

    Raises:
        SystemStateError: If it is in standby already.
    """
    if state.is_standby:
        raise SystemStateError(f"{state.name} is in STANDBY already; `system activate` brings it back")
    return replace(state, is_standby=True)


def with_mode(state: SystemState, execution_mode: str) -> SystemState:
    """Return the system with the mode that an administrator has chosen.

    Raises:
        SystemStateError: If the system is not in standby.
        ValueError: If the mode is not one of the two.
    """
    if execution_mode not in MODE_TITLES:
        raise ValueError(f"unknown execution mode {execution_mode!r}: expected one of {', '.join(MODE_TITLES)}")
    if not state.is_standby:
        raise SystemStateError(
            f"{state.name} is ACTIVE; the execution mode can only be changed in STANDBY. Run `system standby` first."
        )
    return replace(state, execution_mode=execution_mode, is_mode_pinned=True)


def activated(state: SystemState, now: float) -> SystemState:
    """Return the system rebooting, to be ACTIVE after facts.REBOOT_WALL_S.

    Raises:
        SystemStateError: If it is not in standby.
    """
    if not state.is_standby:
        raise SystemStateError(f"{state.name} is {state.phase(now)} already; nothing to activate")
    ends_at = now + facts.REBOOT_WALL_S.value
    return replace(state, is_standby=False, boot_ends_at=ends_at, software_version=__version__)


def check_admits(state: SystemState, execution_mode: str) -> None:
    """Check that the system may take a run in this mode, now or once it has rebooted and is free.

    Raises:
        SystemStateError: If it is in standby; with the command that activates it.
        ExecModeError: If it is in the other mode; with the commands that change it.
    """
    if state.is_standby:
        raise SystemStateError(
            f"{state.name} ({state.address}) is in STANDBY and takes no runs. "
            f'An administrator activates it with: cs --system {state.name} -c "system activate"'
        )
    if state.is_mode_pinned and state.execution_mode != execution_mode:
        wanted = MODE_TITLES[execution_mode]
        raise ExecModeError(
            f"{state.name} ({state.address}) is in {MODE_TITLES[state.execution_mode]} mode, but this run is for "
            f"{wanted} mode. Run it with `{INTERPRETERS[state.execution_mode]}`, or ask an administrator to change the "
            f'system: cs --system {state.name} -c "system standby --yes" '
            f'-c "config execmode setup {execution_mode}" -c "system activate"'
        )
