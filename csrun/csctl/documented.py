"""Documented csctl commands that a simulated cluster has no use for: they are refused by name, with the reason."""

from __future__ import annotations

from collections.abc import Sequence

from csrun.csctl.resources import ResourceError

_NO_HARDWARE = "the systems are simulated, and have no hardware to maintain"
_NO_SESSIONS = "no system is reserved here: jobs wait for systems in one queue (csctl get jobs)"
_NO_USERS = "there are no user accounts here; csctl cancel job ends a job"
_REASONS = {
    ("system-maintenance",): _NO_HARDWARE,
    ("node-maintenance",): _NO_HARDWARE,
    ("system",): _NO_HARDWARE,
    ("debug-artifact",): "jobs keep no debug artifacts here; csctl log-export JOB gathers a job's record and log",
    ("user",): _NO_USERS,
    ("session", "create"): _NO_SESSIONS,
    ("session", "update"): _NO_SESSIONS,
    ("session", "delete"): _NO_SESSIONS,
    ("session", "debug-update"): _NO_SESSIONS,
    ("session", "pause-pending-jobs"): _NO_SESSIONS,
    ("session", "unpause-pending-jobs"): _NO_SESSIONS,
    ("job", "topology"): "a job's systems have no placement in a network; csctl cluster topology shows all systems",
}


def refuse(words: Sequence[str]) -> None:
    """Refuse a documented command that is not simulated.

    Args:
        words: The command line, without options before the command.

    Raises:
        ResourceError: If it is one.
    """
    for command, reason in _REASONS.items():
        if tuple(words[: len(command)]) == command and not {"-h", "--help"} & set(words):
            raise ResourceError(f"csctl {' '.join(command)} is not simulated: {reason}")
