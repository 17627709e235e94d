"""The SQLite files that hold the systems and the jobs: opening them, their tables, one transaction at a time.

Two files, because they have different writers: `systems.sqlite` is for administrators, `jobs.sqlite` for everybody
who may run. Both survive kill -9 at any moment: SQLite's rollback journal undoes a half-written change when the file
is opened next. (Not the write-ahead log: it does not work on network file systems.)
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from cerebras_tensorflow.errors import SystemStateError

LOCK_TIMEOUT_S = 60.0
SCHEMA_VERSION = 2

SYSTEMS = """
CREATE TABLE systems (
    name TEXT PRIMARY KEY,
    address TEXT NOT NULL UNIQUE,
    execution_mode TEXT NOT NULL,
    is_mode_pinned INTEGER NOT NULL,
    is_standby INTEGER NOT NULL,
    boot_ends_at REAL NOT NULL,
    software_version TEXT NOT NULL,
    created_at REAL NOT NULL
);
CREATE TABLE changes (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    system TEXT NOT NULL,
    at REAL NOT NULL,
    who TEXT NOT NULL,
    what TEXT NOT NULL
);
"""

JOBS = """
CREATE TABLE jobs (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE,
    system TEXT NOT NULL,
    execution_mode TEXT NOT NULL,
    user TEXT NOT NULL,
    uid INTEGER NOT NULL,
    host TEXT NOT NULL,
    pid INTEGER NOT NULL,
    phase TEXT NOT NULL,
    description TEXT NOT NULL,
    labels TEXT NOT NULL,
    log TEXT NOT NULL,
    message TEXT NOT NULL,
    is_cancel_requested INTEGER NOT NULL,
    created_at REAL NOT NULL,
    started_at REAL,
    finished_at REAL
);
CREATE INDEX jobs_by_phase ON jobs (phase, system, number);
"""

SCHEMAS = {"systems.sqlite": SYSTEMS, "jobs.sqlite": JOBS}
CHANGES = {1: {"systems.sqlite": "ALTER TABLE systems ADD COLUMN software_version TEXT NOT NULL DEFAULT ''"}}
"""What makes a file of a format one of the next."""


@contextmanager
def opened(path: Path) -> Iterator[sqlite3.Connection]:
    """Yield a connection to one of the two files, which is created with its tables when it is missing.

    Raises:
        SystemStateError: If the folder cannot be created or the file cannot be opened; says how to use another one.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        connection = sqlite3.connect(path, timeout=LOCK_TIMEOUT_S, isolation_level=None)
    except (OSError, sqlite3.OperationalError) as exc:
        raise SystemStateError(
            f"cannot open {path}, where the simulated systems and their jobs are kept: {exc}. "
            f"Set CEREBRAS_HOME to a folder that {os.environ.get('USER', 'this user')} can write to."
        ) from exc
    with closing(connection):
        connection.row_factory = sqlite3.Row
        # Fewer waits for the disk in each launch. What is lost is no kill -9's matter: a rare loss of the rollback
        # journal when the power fails at the wrong moment, on disks that reorder writes.
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.execute("PRAGMA journal_mode = PERSIST")
        if connection.execute("PRAGMA user_version").fetchone()[0] != SCHEMA_VERSION:
            _make_current(connection, path)
        yield connection


@contextmanager
def transaction(path: Path) -> Iterator[sqlite3.Connection]:
    """Yield a connection that holds the file's write lock; commits at the end, rolls back on any exception.

    Raises:
        SystemStateError: If the file is not writable for this user.
    """
    with opened(path) as connection:
        try:
            connection.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError as exc:
            if not os.access(path, os.W_OK):
                raise SystemStateError(f"{path} belongs to the administrators: this user may only read it") from exc
            raise
        try:
            yield connection
        except BaseException:
            connection.execute("ROLLBACK")
            raise
        connection.execute("COMMIT")


def _make_current(connection: sqlite3.Connection, path: Path) -> None:
    """Create the tables of a new file, or bring one of an earlier release up to date."""
    try:
        connection.execute("BEGIN IMMEDIATE")
    except sqlite3.OperationalError as exc:
        if not os.access(path, os.W_OK):
            raise SystemStateError(
                f"{path} is of an earlier release; an administrator updates it with: cs -c 'system show'"
            ) from exc
        raise
    # Another process may have been quicker between the first look and the lock.
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    if version > SCHEMA_VERSION:
        raise SystemStateError(
            f"{path} has format {version}; this release reads up to {SCHEMA_VERSION}, use a later one"
        )
    if version == 0:
        for statement in filter(str.strip, SCHEMAS[path.name].split(";")):
            connection.execute(statement)
    else:
        for earlier in range(version, SCHEMA_VERSION):
            if path.name in CHANGES[earlier]:
                connection.execute(CHANGES[earlier][path.name])
    connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
    connection.execute("COMMIT")
