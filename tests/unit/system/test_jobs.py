import os
import signal
import sqlite3
import subprocess
import sys
import time

import pytest

from cerebras_tensorflow.errors import SystemStateError
from cerebras_tensorflow.system import database as store
from cerebras_tensorflow.system import jobs


def submit(home) -> jobs.LiveJob:
    return jobs.submit(home, "lab", "pipelined")


def test_ids_have_the_published_shape(home) -> None:
    prefix, separator, rest = submit(home).id.partition("-")
    assert (prefix, separator, len(rest)) == ("wsjob", "-", 22)
    assert set(rest) <= set(jobs.ID_LETTERS)


def test_the_wafer_goes_to_the_first_in_the_queue(home) -> None:
    first, second = submit(home), submit(home)
    # A job later in the queue learns what it waits for, and waits until that job ends.
    messages: list[str] = []

    def on_wait(line: str) -> None:
        messages.append(line)
        first.wait_for_wafer(lambda: True)
        first.finish(jobs.SUCCEEDED)

    second.wait_for_wafer(lambda: True, on_wait)
    assert len(messages) == 1 and first.id in messages[0] and "1 ahead" in messages[0]
    assert second.record.phase == jobs.RUNNING


def test_each_system_has_its_own_queue(home) -> None:
    submit(home).wait_for_wafer(lambda: True)
    other = jobs.submit(home, "other", "pipelined")
    other.wait_for_wafer(lambda: True)
    assert other.record.phase == jobs.RUNNING


def test_a_killed_job_is_failed_and_lets_the_next_one_in(home) -> None:
    code = (
        "import sys, time; from pathlib import Path; from cerebras_tensorflow.system import jobs\n"
        "job = jobs.submit(Path(sys.argv[1]), 'lab', 'pipelined'); job.wait_for_wafer(lambda: True)\n"
        "print(job.number, flush=True); sys.stdin.read()"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", code, str(home)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with child:
        assert child.stdout is not None
        number = int(child.stdout.readline())
        assert jobs.record(home, number).phase == jobs.RUNNING
        child.kill()
    after = submit(home)
    after.wait_for_wafer(lambda: True)
    killed = jobs.record(home, number)
    assert killed.phase == jobs.FAILED
    assert "ended without a result" in killed.message


def test_a_cancelled_job_stops_waiting(home) -> None:
    submit(home).wait_for_wafer(lambda: True)
    waiting = submit(home)
    with pytest.raises(SystemStateError, match="cancelled by alice"):
        waiting.wait_for_wafer(lambda: True, lambda _: jobs.request_cancel(home, waiting.id, "alice"))
    waiting.finish(jobs.FAILED, "whatever")
    assert waiting.record.phase == jobs.CANCELLED


def test_labels_are_added_replaced_and_removed(home) -> None:
    job = jobs.submit(home, "lab", "pipelined", labels={"a": "1", "b": "2"})
    changed = jobs.set_labels(home, job.id, {"a": "3", "b": None, "c": "x; rm -rf /"})
    assert changed is not None and changed.labels == {"a": "3", "c": "x; rm -rf /"}
    assert jobs.set_labels(home, "wsjob-nope", {"a": "1"}) is None


def test_only_the_user_may_read_the_log_of_a_job(home) -> None:
    assert submit(home).folder.stat().st_mode & 0o777 == 0o700


def test_a_write_that_is_killed_leaves_a_readable_state(home, tmp_path) -> None:
    code = (
        "import sys, time; from pathlib import Path; from cerebras_tensorflow.system import registry, state\n"
        "home = Path(sys.argv[1]); print(flush=True)\n"
        "while True:\n"
        "    registry.change(home, 'cs2-embedded', state.to_standby, 'standby')\n"
        "    registry.change(home, 'cs2-embedded', lambda s: state.activated(s, 0.0), 'activate')\n"
    )
    from cerebras_tensorflow.system import registry
    from cerebras_tensorflow.system.state import activated

    for round_ in range(20):
        child = subprocess.Popen([sys.executable, "-c", code, str(home)], stdout=subprocess.PIPE)
        with child:
            assert child.stdout is not None
            child.stdout.readline()
            deadline = time.monotonic() + 0.003 * round_
            while time.monotonic() < deadline:
                continue
            child.send_signal(signal.SIGKILL)
        state = registry.find_here().state
        if state.is_standby:
            registry.change(home, state.name, lambda s: activated(s, 0.0), "activate")
        with sqlite3.connect(home / "systems.sqlite") as connection:
            assert connection.execute("PRAGMA integrity_check").fetchone()[0] == "ok"
        connection.close()


def test_a_file_of_another_format_is_refused(home) -> None:
    home.mkdir()
    with sqlite3.connect(home / "jobs.sqlite") as connection:
        connection.execute("PRAGMA user_version = 99")
    connection.close()
    with pytest.raises(SystemStateError, match="format 99"):
        submit(home)


def test_a_file_of_an_earlier_release_is_brought_up_to_date(home) -> None:
    from cerebras_tensorflow.system import registry

    registry.create(home, "lab", "10.0.0.1")
    submit(home).finish(jobs.SUCCEEDED)
    for name, column in (("systems", "software_version"), ("jobs", "priority")):
        with sqlite3.connect(home / f"{name}.sqlite") as connection:
            connection.execute(f"ALTER TABLE {name} DROP COLUMN {column}")
            connection.execute("PRAGMA user_version = 1")
        connection.close()
    assert registry.read(home, "lab").software_version == ""
    assert len(jobs.listed(home, jobs.FINISHED)) == 1
    assert registry.create(home, "lab2").software_version == registry.read(home, "lab2").software_version != ""


def test_the_error_of_a_home_that_cannot_be_made_names_the_variable(tmp_path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SystemStateError, match="Set CEREBRAS_HOME"), store.opened(tmp_path / "file" / "jobs.sqlite"):
        pass
    assert os.listdir(tmp_path) == ["file"]
