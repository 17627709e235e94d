import re
import threading
import time
from pathlib import Path

import pytest

from cerebras_tensorflow.config import env
from cerebras_tensorflow.errors import ExecModeError, SystemNotFoundError, SystemStateError
from cerebras_tensorflow.system import database, jobs, registry, state


@pytest.mark.parametrize(
    "cs_ip", [None, "", "localhost", "127.0.0.1", "127.0.0.1:9000", "localhost:9000", "[::1]:9000"]
)
def test_no_address_and_this_host_mean_the_embedded_system(home, cs_ip: str | None) -> None:
    assert registry.find(cs_ip).name == "cs2-embedded"


@pytest.mark.parametrize("cs_ip", ["10.0.0.1", "10.0.0.1:9000", "lab"])
def test_a_registered_system_is_found_with_and_without_the_port(home, cs_ip: str) -> None:
    registry.create(home, "lab", "10.0.0.1", env.WEIGHT_STREAMING)
    assert registry.find(cs_ip).name == "lab"


@pytest.mark.parametrize("cs_ip", ["10.9.9.9", "no-such-host.invalid", "127.0.0.1:1"])
def test_an_unknown_address_is_refused_with_advice_within_five_seconds(home, cs_ip: str) -> None:
    started = time.monotonic()
    message = rf"cs-system create NAME --address {re.escape(cs_ip)}.*leave out --cs_ip"
    with pytest.raises(SystemNotFoundError, match=message):
        registry.find(cs_ip)
    assert time.monotonic() - started < 5


def test_a_dead_name_server_delays_at_most_five_seconds(home, monkeypatch: pytest.MonkeyPatch) -> None:
    ended = threading.Event()

    # A real dead name server takes up to half a minute, and a test cannot configure one.
    def asks_a_dead_server(*_: object, **__: object) -> None:
        ended.wait(30)
        raise OSError("no answer")

    monkeypatch.setattr("socket.getaddrinfo", asks_a_dead_server)
    started = time.monotonic()
    with pytest.raises(SystemNotFoundError):
        registry.find("cs2.example.org")
    assert time.monotonic() - started < 5
    ended.set()


@pytest.mark.parametrize("cs_ip", ["a b", "10.0.0.1:port", "http://x/y", "../../etc", "x" * 300, "10.0.0.1:70000"])
def test_a_malformed_address_is_not_found(home, cs_ip: str) -> None:
    with pytest.raises(SystemNotFoundError):
        registry.find(cs_ip)


@pytest.mark.parametrize("name", ["../evil", "a b", "", "-x", "a;b", "a" * 64])
def test_a_malformed_name_is_refused(home, name: str) -> None:
    with pytest.raises(ValueError, match="not a system name"):
        registry.create(home, name)


def test_names_and_addresses_must_be_unique(home) -> None:
    registry.create(home, "lab", "10.0.0.1")
    with pytest.raises(ValueError, match=r"lab at 10\.0\.0\.1:9000 already"):
        registry.create(home, "lab", "10.0.0.2")
    with pytest.raises(ValueError, match="belongs to the system lab"):
        registry.create(home, "other", "10.0.0.1:9000")
    with pytest.raises(ValueError, match="belongs to the system cs2-embedded"):
        registry.create(home, "mine", "127.0.0.1")


def test_the_embedded_system_follows_the_run_until_an_administrator_sets_it(home) -> None:
    with registry.find().run(env.WEIGHT_STREAMING):
        assert registry.find().execution_mode == env.WEIGHT_STREAMING
    with registry.find().run(env.PIPELINED):
        assert registry.find().execution_mode == env.PIPELINED
    registry.change(home, "cs2-embedded", state.to_standby, "standby")
    registry.change(home, "cs2-embedded", lambda s: state.with_mode(s, env.PIPELINED), "mode")
    registry.change(home, "cs2-embedded", lambda s: state.activated(s, 0.0), "activate")
    with pytest.raises(ExecModeError), registry.find().run(env.WEIGHT_STREAMING):
        pass


def test_a_run_waits_while_the_system_reboots(home) -> None:
    registry.create(home, "lab")
    registry.change(home, "lab", state.to_standby, "standby")
    registry.change(home, "lab", lambda s: state.activated(s, time.time()), "activate")
    lines: list[str] = []
    with registry.find("lab").run(env.PIPELINED, on_wait=lines.append) as job:
        assert job.record.phase == jobs.RUNNING
    assert lines == ["lab is rebooting"]


def test_a_run_leaves_a_record_of_how_it_ended(home) -> None:
    with registry.find().run(env.PIPELINED, "first"):
        pass
    with pytest.raises(RuntimeError), registry.find().run(env.PIPELINED, "second"):
        raise RuntimeError("no good")
    first, second = jobs.listed(home, jobs.FINISHED)
    assert (first.description, first.phase) == ("first", "SUCCEEDED")
    assert (second.phase, second.message) == ("FAILED", "RuntimeError: no good")


def test_a_run_inside_a_run_does_not_wait_for_itself(home) -> None:
    with registry.find().run(env.PIPELINED) as outer, registry.find().run(env.PIPELINED) as inner:
        assert inner is outer


def test_a_run_inside_a_launch_uses_the_job_of_the_launcher(home, monkeypatch: pytest.MonkeyPatch) -> None:
    registry.create(home, "lab")
    launched = jobs.submit(home, "cs2-embedded", env.PIPELINED)
    launched.wait_for_wafer(lambda: True)
    monkeypatch.setenv(env.JOB_ID, str(launched.number))
    with registry.find().run(env.PIPELINED) as job:
        assert job.number == launched.number
    assert launched.record.phase == jobs.RUNNING
    # If a script names another system than the launcher, its job moves there, so it never holds two wafers.
    with registry.find("lab").run(env.PIPELINED) as job:
        assert (job.number, job.record.system, job.record.phase) == (launched.number, "lab", jobs.RUNNING)
    launched.finish(jobs.SUCCEEDED)


def test_a_busy_system_is_not_put_in_standby(home) -> None:
    with registry.find().run(env.PIPELINED) as job, pytest.raises(SystemStateError, match=f"csctl cancel job {job.id}"):
        registry.change(home, "cs2-embedded", state.to_standby, "standby")


def test_every_change_is_logged_with_who_made_it(home) -> None:
    registry.create(home, "lab")
    registry.change(home, "lab", state.to_standby, "system standby")
    assert [change.what for change in registry.changes(home, "lab")] == [
        "created at lab:9000, pipelined",
        "system standby",
    ]
    assert {change.who for change in registry.changes(home, "lab")} == {jobs.user_name()}


def test_removal_frees_the_address(home) -> None:
    registry.create(home, "lab", "10.0.0.1")
    registry.remove(home, "lab")
    registry.create(home, "lab2", "10.0.0.1")
    assert registry.find("10.0.0.1").name == "lab2"
    with pytest.raises(SystemStateError, match="cannot be removed"):
        registry.remove(home, "cs2-embedded")


def test_two_jobs_of_two_among_three_systems_run_one_after_the_other_and_never_deadlock(home) -> None:
    folder = env.read().home
    for name in ("a", "b"):
        registry.create(folder, name, execution_mode=env.PIPELINED)
    together, most, taken = 0, 0, []
    lock = threading.Lock()

    def run(name: str) -> None:
        nonlocal together, most
        for _ in range(3):
            with registry.find(name).run(env.PIPELINED, num_csx=2) as job:
                with lock:
                    together += 1
                    most = max(most, together)
                taken.append(jobs.record(folder, job.number).system)
                with lock:
                    together -= 1

    threads = [threading.Thread(target=run, args=(name,), daemon=True) for name in ("a", "b")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(taken) == 6, "both end"
    assert most == 1, "three systems have no room for two jobs of two"
    assert all(len(jobs.systems_of(names)) == 2 for names in taken)


def test_a_job_of_several_systems_keeps_each_of_them_busy(home) -> None:
    folder = env.read().home
    registry.create(folder, "a", execution_mode=env.PIPELINED)
    with registry.find("a").run(env.PIPELINED, num_csx=4) as job:
        record = jobs.record(folder, job.number)
        assert record.system == "a,cs2-embedded", "all systems that there are"
        for name in ("a", "cs2-embedded"):
            assert [one.id for one in jobs.listed(folder, jobs.LIVE, name)] == [job.id]
            later = jobs.submit(folder, name, env.PIPELINED)
            assert later.try_start(lambda: True) is not None
            later.finish(jobs.CANCELLED)
        attached = jobs.attach(folder, job.number, "a", env.PIPELINED)
        assert attached is not None and attached.record.system == record.system, "an evaluation keeps them"


@pytest.mark.parametrize(("column", "value"), [("execution_mode", "text"), ("boot_ends_at", b"\xff"), ("address", 7)])
def test_a_system_with_a_damaged_value_is_reported_as_a_damaged_file(home: Path, column: str, value: object) -> None:
    registry.find()
    with database.transaction(home / "systems.sqlite") as connection:
        connection.execute(f"UPDATE systems SET {column} = CAST(? AS BLOB)", (value,))
    with pytest.raises(database.RecordsError, match=rf"systems\.sqlite is damaged .*the {column} of a system"):
        registry.find()
