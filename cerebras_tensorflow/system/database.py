"""The SQLite files with the systems and the jobs: opens them, creates their tables, runs transactions.

There are two files because their writers differ: administrators write `systems.sqlite`, and all users who may run jobs
write `jobs.sqlite`. Both survive kill -9 at any moment: SQLite's rollback journal undoes a half-written change when the
file is opened next. (The write-ahead log would not work on network file systems.)
"""

from __future__ import annotations

import errno
import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Literal

from cerebras_tensorflow import files
from cerebras_tensorflow.errors import SystemStateError

LOCK_TIMEOUT_S = 60.0
SCHEMA_VERSION = 3

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
    finished_at REAL,
    priority INTEGER NOT NULL DEFAULT 299
);
CREATE INDEX jobs_by_phase ON jobs (phase, system, number);
"""

SCHEMAS = {"systems.sqlite": SYSTEMS, "jobs.sqlite": JOBS}
CHANGES = {
    1: {"systems.sqlite": "ALTER TABLE systems ADD COLUMN software_version TEXT NOT NULL DEFAULT ''"},
    2: {"jobs.sqlite": "ALTER TABLE jobs ADD COLUMN priority INTEGER NOT NULL DEFAULT 299"},
}
"""Statement that brings a file of a format to the next format, by the file's name."""


PRIVATE = {"jobs.sqlite"}
"""Files that are created readable by their owner only: jobs.sqlite contains whole command lines."""


Kind = Literal["refused", "locked", "damaged", "unusable"]
REFUSED: Kind = "refused"
LOCKED: Kind = "locked"
DAMAGED: Kind = "damaged"
UNUSABLE: Kind = "unusable"


class RecordsError(SystemStateError):
    """A file of records cannot be used; the text says why and what to do.

    Attributes:
        kind: REFUSED: this user has no permission. LOCKED: another process keeps the file locked. DAMAGED: the file is
            corrupt. UNUSABLE: the disk is full or fails.
    """

    def __init__(self, message: str, kind: Kind) -> None:
        super().__init__(message)
        self.kind = kind


def kind_of(error: OSError) -> Kind:
    """Return the kind of RecordsError for an OSError."""
    is_refused = error.errno in (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EEXIST)
    return REFUSED if is_refused else UNUSABLE


@contextmanager
def opened(path: Path, lock_timeout_s: float | None = None) -> Iterator[sqlite3.Connection]:
    """Yield a connection to one of the two files. A missing file is created with its tables.

    Args:
        path: The file.
        lock_timeout_s: How long to wait for a lock that another process has [s]; by default LOCK_TIMEOUT_S.

    Raises:
        RecordsError: If the folder or the file cannot be created, read or written, is damaged, or stays locked.
    """
    timeout_s = LOCK_TIMEOUT_S if lock_timeout_s is None else lock_timeout_s
    with _explained(path, timeout_s):
        _make_file(path)
        connection = sqlite3.connect(path, timeout=timeout_s, isolation_level=None)
        with closing(connection):
            connection.row_factory = sqlite3.Row
            # A damaged or forged record may hold text that is not UTF-8. The other records must stay readable.
            connection.text_factory = lambda raw: raw.decode("utf-8", "replace")
            # NORMAL waits for the disk less often. It is safe against kill -9. A power failure at the wrong moment may
            # lose the rollback journal, on a disk that reorders writes.
            connection.execute("PRAGMA synchronous = NORMAL")
            connection.execute("PRAGMA journal_mode = PERSIST")
            if connection.execute("PRAGMA user_version").fetchone()[0] != SCHEMA_VERSION:
                _make_current(connection, path)
            yield connection


@contextmanager
def transaction(path: Path, lock_timeout_s: float | None = None) -> Iterator[sqlite3.Connection]:
    """Yield a connection that holds the file's write lock; commits at the end, rolls back on any exception.

    Args:
        path: The file.
        lock_timeout_s: As for `opened`.

    Raises:
        RecordsError: As for `opened`, or if the file is not writable for this user.
    """
    with opened(path, lock_timeout_s) as connection:
        connection.execute("BEGIN IMMEDIATE")
        try:
            yield connection
        except BaseException:
            # After some errors, such as a full disk, SQLite has rolled back already.
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise
        connection.execute("COMMIT")


@contextmanager
def _explained(path: Path, lock_timeout_s: float) -> Iterator[None]:
    """Turn errors of SQLite and of the file system into RecordsError."""
    try:
        yield
    except OSError as exc:
        raise RecordsError(_unusable(path, str(exc)), kind_of(exc)) from exc
    except sqlite3.DatabaseError as exc:
        code = getattr(exc, "sqlite_errorname", "")
        text = str(exc)
        if code in ("SQLITE_CORRUPT", "SQLITE_NOTADB") or "malformed" in text or "not a database" in text:
            what = "systems and their modes" if path.name == "systems.sqlite" else "records of jobs"
            raise RecordsError(
                f"{path} is damaged ({text}). Move it away; the next command creates a new one. Only the {what} in it "
                "are lost",
                DAMAGED,
            ) from exc
        if code.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")) or "locked" in text:
            raise RecordsError(
                f"another process has kept {path} locked for {lock_timeout_s:.0f} s; `fuser {path}` names it",
                LOCKED,
            ) from exc
        is_refused = code.startswith(("SQLITE_READONLY", "SQLITE_PERM", "SQLITE_AUTH")) or (
            path.exists() and not os.access(path, os.R_OK | os.W_OK)
        )
        if is_refused and os.access(path, os.R_OK) and path.stat().st_uid != os.getuid():
            raise RecordsError(f"{path} belongs to the administrators: this user may only read it", REFUSED) from exc
        raise RecordsError(_unusable(path, text), REFUSED if is_refused else UNUSABLE) from exc


def _unusable(path: Path, why: str) -> str:
    return (
        f"cannot open {path}, where the simulated systems and their jobs are kept: {why}. "
        f"Set CEREBRAS_HOME to a folder that {os.environ.get('USER', 'this user')} can write to"
    )


def _make_file(path: Path) -> None:
    """Create a private file here, because SQLite would create it with the user's umask.

    A file that its owner has made writable for others stays shared.
    """
    with files.closed_to_others():
        path.parent.mkdir(parents=True, exist_ok=True)
    if path.name not in PRIVATE:
        return
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    except FileExistsError:
        _close_or_share(path)


def _close_or_share(path: Path) -> None:
    """Make a file of this user private, unless others may write it; earlier releases created readable files.

    The journal gets the same permissions, because a file that is shared later cannot be used without it.
    """
    status = path.stat()
    if status.st_uid != os.getuid():
        return
    mode = status.st_mode & 0o777
    wanted = mode if mode & 0o022 else mode & 0o700
    for file in (path, path.with_name(f"{path.name}-journal")):
        with suppress(FileNotFoundError):
            if file.stat().st_mode & 0o777 != wanted:
                file.chmod(wanted)


def _make_current(connection: sqlite3.Connection, path: Path) -> None:
    """Create the tables of a new file, or update a file of an earlier release."""
    try:
        connection.execute("BEGIN IMMEDIATE")
    except sqlite3.OperationalError as exc:
        if not os.access(path, os.W_OK):
            raise RecordsError(
                f"{path} is of an earlier release; an administrator updates it with: cs -c 'system show'",
                REFUSED,
            ) from exc
        raise
    # Another process may have updated the file between the first check and the lock.
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    if version > SCHEMA_VERSION:
        raise RecordsError(
            f"{path} has format {version}; this release reads up to {SCHEMA_VERSION}. Use a later release",
            REFUSED,
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
