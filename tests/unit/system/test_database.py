"""Database files that are damaged, locked, owned by others or too widely readable."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from cerebras_tensorflow.system import database, jobs, registry
from cerebras_tensorflow.system.database import RecordsError


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


def test_only_the_user_can_read_recorded_command_lines(home: Path) -> None:
    jobs.submit(home, "lab", "pipelined", "python run.py --password x")
    assert mode(home / "jobs.sqlite") == 0o600
    assert mode(home / "jobs.sqlite-journal") == 0o600


@pytest.mark.parametrize(("before", "after"), [(0o644, 0o600), (0o664, 0o664), (0o666, 0o666)])
def test_permissions_of_older_files_are_restricted_unless_shared(home: Path, before: int, after: int) -> None:
    jobs.submit(home, "lab", "pipelined")
    (home / "jobs.sqlite").chmod(before)
    jobs.listed(home)
    assert mode(home / "jobs.sqlite") == after


@pytest.mark.parametrize("content", [b"no database" * 500, b"SQLite format 3\0" + b"\xff" * 5000])
@pytest.mark.parametrize("name", ["jobs.sqlite", "systems.sqlite"])
def test_the_error_of_a_damaged_file_says_what_to_do(home: Path, name: str, content: bytes) -> None:
    home.mkdir()
    (home / name).write_bytes(content)
    with pytest.raises(RecordsError, match=f"{name} is damaged .*Move it away") as caught:
        jobs.listed(home) if name == "jobs.sqlite" else registry.listed(home)
    assert caught.value.kind == database.DAMAGED


def test_a_launch_goes_on_without_a_damaged_file_of_jobs(home: Path, run) -> None:
    home.mkdir()
    (home / "jobs.sqlite").write_bytes(b"no database" * 500)
    done = run("csrun_wse", "--executor", "embedded", "python", "-c", "print('ran')")
    assert done.returncode == 0
    assert done.stdout.endswith("ran\n")
    assert "is damaged" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_error_of_a_locked_file_names_fuser(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = jobs.submit(home, "lab", "pipelined")
    monkeypatch.setattr(database, "LOCK_TIMEOUT_S", 0.05)
    blocker = sqlite3.connect(home / "jobs.sqlite", isolation_level=None)
    blocker.execute("BEGIN EXCLUSIVE")
    with pytest.raises(RecordsError, match="fuser") as caught:
        jobs.submit(home, "lab", "pipelined")
    assert caught.value.kind == database.LOCKED
    # A job in the queue keeps its place and takes its turn once the lock is gone.
    lines = []

    def on_wait(line: str) -> None:
        lines.append(line)
        blocker.execute("COMMIT")

    job.wait_for_wafer(lambda: True, on_wait)
    assert "fuser" in lines[0]
    assert job.record.phase == jobs.RUNNING
    blocker.close()


def test_a_reader_without_end_hardly_delays_a_run_of_another_mode(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    system = registry.find(home=home)
    reader = sqlite3.connect(home / "systems.sqlite", isolation_level=None)
    reader.execute("BEGIN")
    reader.execute("SELECT * FROM systems").fetchall()
    waits: list[float] = []

    def connect(path: Path, timeout: float, **options: object) -> sqlite3.Connection:
        waits.append(timeout)
        return open_file(path, timeout=0, **options)

    open_file = sqlite3.connect
    monkeypatch.setattr(sqlite3, "connect", connect)
    assert registry.admit(home, system.name, "weight_streaming")
    assert waits[-1] < 5
    reader.close()
    assert registry.read(home, system.name).execution_mode == "pipelined"


def test_one_bad_record_does_not_break_the_list(home: Path) -> None:
    good, bad, forged = (jobs.submit(home, "lab", "pipelined", labels={"a": "1"}) for _ in range(3))
    with database.transaction(jobs.jobs_file(home)) as connection:
        connection.execute('UPDATE jobs SET labels = \'{"a": 0, "b": "2"}\' WHERE id = ?', (bad.id,))
        connection.execute("UPDATE jobs SET id = '../../etc' WHERE id = ?", (forged.id,))
    assert [(job.id, job.labels) for job in jobs.listed(home)] == [(good.id, {"a": "1"}), (bad.id, {"b": "2"})]
    assert jobs.find(home, "../../etc") is None


def test_bytes_that_are_not_utf8_are_escaped(home: Path) -> None:
    job = jobs.submit(home, "lab", "pipelined", "python caf\udce9.py", {"a": "\udcff"})
    assert job.record.description == r"python caf\xe9.py"
    assert job.record.labels == {"a": r"\xff"}


READ = """
import sys
from pathlib import Path
from cerebras_tensorflow.system import registry
def attack():
    home = Path(sys.argv[1])
    print(registry.read(home, "cs2-embedded").execution_mode)
    try:
        registry.create(home, "mine")
    except Exception as exc:
        print(exc)
"""


def test_a_user_without_write_permission_can_read_but_not_create_systems(home: Path, as_nobody) -> None:
    registry.listed(home)
    home.chmod(0o755)
    output, errors = as_nobody(READ, home).communicate(timeout=60)
    assert output.startswith("pipelined\n"), errors
    assert "belongs to the administrators: this user may only read it" in output


SHARE = """
import getpass, secrets, sys  # import now: the other user may not be able to read these files later
from pathlib import Path
from cerebras_tensorflow.system import jobs
def attack():
    home = Path(sys.argv[1])
    print([job.id for job in jobs.listed(home)], flush=True)
    mine = jobs.submit(home, "lab", "pipelined", "mine")
    print(mine.try_start(lambda: True).reason, flush=True)
    sys.stdin.readline()
    mine.wait_for_wafer(lambda: True)
    print(mine.record.phase)
"""


def test_users_who_share_a_home_wait_for_each_other(home: Path, as_nobody) -> None:
    job = jobs.submit(home, "lab", "pipelined")
    job.wait_for_wafer(lambda: True)
    home.chmod(0o777)
    (home / "jobs").chmod(0o1777)
    (home / "jobs.sqlite").chmod(0o666)
    jobs.listed(home)
    with as_nobody(SHARE, home) as other:
        assert other.stdout.readline() == f"['{job.id}']\n", other.stderr.read()
        assert f"lab is busy with job 1 ({job.id})" in other.stdout.readline()
        theirs = jobs.listed(home)[-1]
        assert (theirs.description, theirs.uid) == ("mine", 65534)
        job.finish(jobs.SUCCEEDED)
        other.stdin.write("\n")
        other.stdin.flush()
        assert other.stdout.readline() == "RUNNING\n"
