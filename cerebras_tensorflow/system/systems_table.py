"""The rows of the simulated systems, and of their changes, in the database of a home."""

from __future__ import annotations

import sqlite3
import time
from dataclasses import asdict

from cerebras_tensorflow.errors import SystemNotFoundError
from cerebras_tensorflow.system import jobs
from cerebras_tensorflow.system.state import MODE_TITLES, SystemState


def read_all(connection: sqlite3.Connection) -> list[SystemState]:
    """Return all systems, the oldest first."""
    return [_state(row) for row in connection.execute("SELECT * FROM systems ORDER BY created_at, name")]


def read_one(connection: sqlite3.Connection, name: str) -> SystemState:
    """Return a system by its name.

    Raises:
        SystemNotFoundError: If there is none.
    """
    row = connection.execute("SELECT * FROM systems WHERE name = ?", (name,)).fetchone()
    if row is None:
        known = ", ".join(state.name for state in read_all(connection))
        raise SystemNotFoundError(f"there is no system {name!r}; known here: {known}")
    return _state(row)


def _state(row: sqlite3.Row) -> SystemState:
    """Return the system of a row.

    Raises:
        sqlite3.DatabaseError: If a value cannot be one that we wrote; `database.opened` calls the file damaged.
    """
    for name, is_right in (
        ("name", isinstance(row["name"], str)),
        ("address", isinstance(row["address"], str)),
        ("execution_mode", row["execution_mode"] in MODE_TITLES),
        ("boot_ends_at", isinstance(row["boot_ends_at"], int | float)),
        ("software_version", isinstance(row["software_version"], str)),
    ):
        if not is_right:
            raise sqlite3.DatabaseError(f"malformed: the {name} of a system is {row[name]!r}")
    return SystemState(
        name=row["name"],
        address=row["address"],
        execution_mode=row["execution_mode"],
        is_mode_pinned=bool(row["is_mode_pinned"]),
        is_standby=bool(row["is_standby"]),
        boot_ends_at=row["boot_ends_at"],
        software_version=row["software_version"],
    )


def insert(connection: sqlite3.Connection, state: SystemState) -> None:
    """Add a system."""
    values = {**asdict(state), "created_at": time.time()}
    connection.execute(
        f"INSERT INTO systems ({', '.join(values)}) VALUES ({', '.join('?' for _ in values)})", tuple(values.values())
    )


def update(connection: sqlite3.Connection, state: SystemState) -> None:
    """Write the state of a system."""
    connection.execute(
        "UPDATE systems SET execution_mode = ?, is_mode_pinned = ?, is_standby = ?, boot_ends_at = ?, "
        "software_version = ? WHERE name = ?",
        (
            state.execution_mode,
            state.is_mode_pinned,
            state.is_standby,
            state.boot_ends_at,
            state.software_version,
            state.name,
        ),
    )


def note(connection: sqlite3.Connection, system: str, what: str, who: str | None = None) -> None:
    """Add a line to the log of changes of a system."""
    connection.execute(
        "INSERT INTO changes (system, at, who, what) VALUES (?, ?, ?, ?)",
        (system, time.time(), who or jobs.user_name(), what),
    )
