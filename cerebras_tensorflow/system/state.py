"""The state of one simulated CS-2, and the changes that an administrator may make to it.

    ACTIVE --standby--> STANDBY --set mode--> STANDBY --activate--> BOOTING --(time passes)--> ACTIVE

All functions are pure: they take a state and a time, and return a state. A reboot needs no process, because the state
contains the time at which it ends.
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
"""Names of the modes in the menu of `config execmode setup`; `config execmode show` prints them in capitals."""

INTERPRETERS = {env.PIPELINED: "python", env.WEIGHT_STREAMING: "python-ws"}


@dataclass(frozen=True)
class SystemState:
    """One system.

    Attributes:
        name: Name of the system.
        address: host:port that scripts pass as --cs_ip.
        execution_mode: `pipelined` or `weight_streaming`.
        is_mode_pinned: Whether an administrator has chosen the mode; otherwise it follows the run.
        is_standby: Whether it is in standby.
        boot_ends_at: Time at which the latest reboot ends [s since the epoch].
        software_version: Our release at the system's last boot; empty if that release did not record it.
    """

    name: str
    address: str
    execution_mode: str
    is_mode_pinned: bool
    is_standby: bool = False
    boot_ends_at: float = 0.0
    software_version: str = __version__

    def phase(self, now: float) -> str:
        """Return ACTIVE, STANDBY or BOOTING at a time [s since the epoch]."""
        if self.is_standby:
            return STANDBY
        # If the end is farther away than a reboot takes, the clock has gone back since it was set.
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
    """Return the system with a mode set by an administrator.

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
    """Return the system as it reboots; it is ACTIVE after facts.REBOOT_WALL_S.

    Raises:
        SystemStateError: If it is not in standby.
    """
    if not state.is_standby:
        raise SystemStateError(f"{state.name} is {state.phase(now)} already; nothing to activate")
    ends_at = now + facts.REBOOT_WALL_S.value
    return replace(state, is_standby=False, boot_ends_at=ends_at, software_version=__version__)


def check_admits(state: SystemState, execution_mode: str) -> None:
    """Check that the system can take a run in this mode, now or once it has rebooted and is free.

    Raises:
        SystemStateError: If it is in standby; the text names the command that activates it.
        ExecModeError: If it is in the other mode; the text names the commands that change it.
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
