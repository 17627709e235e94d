"""asynchronous: order, bound, errors."""

import os
import threading

import pytest

from cerebras_tensorflow.saver.model_dir.async_writer import AsynchronousWriter


def test_training_continues_while_a_write_waits() -> None:
    gate, written = threading.Event(), []
    with AsynchronousWriter() as writer:
        writer.save(lambda: 1, lambda value: (gate.wait(10), written.append(value)))
        assert writer.is_writing and written == []
        gate.set()
    assert written == [1]


def test_the_writing_threads_give_way_to_those_of_the_training() -> None:
    levels: list[int] = []

    def note() -> None:
        levels.append(os.getpriority(os.PRIO_PROCESS, threading.get_native_id()))

    def write(_value: object) -> None:
        note()
        helper = threading.Thread(target=note)
        helper.start()
        helper.join()

    before = os.getpriority(os.PRIO_PROCESS, threading.get_native_id())
    with AsynchronousWriter() as writer:
        writer.save(lambda: None, write)
    assert os.getpriority(os.PRIO_PROCESS, threading.get_native_id()) == before
    assert len(levels) == 2 and levels[0] == levels[1] and levels[0] == min(before + 10, 19)


def test_saves_never_overtake_and_one_snapshot_exists_at_a_time() -> None:
    alive, peak, written = 0, 0, []

    def snapshot() -> int:
        nonlocal alive, peak
        alive += 1
        peak = max(peak, alive)
        return len(written)

    def write(value: int) -> None:
        nonlocal alive
        written.append(value)
        alive -= 1

    with AsynchronousWriter() as writer:
        for _ in range(50):
            writer.save(snapshot, write)
    assert written == list(range(50))
    assert peak == 1


def test_an_error_is_raised_once_by_the_next_call() -> None:
    def fail(value: int) -> None:
        raise OSError("disk full")

    writer = AsynchronousWriter()
    writer.save(lambda: 1, fail)
    with pytest.raises(OSError, match="disk full"):
        writer.wait()
    writer.check()


def test_an_error_is_raised_at_the_end_unless_training_raised_one() -> None:
    def fail(value: int) -> None:
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"), AsynchronousWriter() as writer:
        writer.save(lambda: 1, fail)
    with pytest.raises(ZeroDivisionError), AsynchronousWriter() as writer:
        writer.save(lambda: 1, fail)
        raise ZeroDivisionError


def test_values_are_given_up_if_no_thread_can_start(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    given_up: list[int] = []
    writer = AsynchronousWriter()
    with monkeypatch.context() as patch, pytest.raises(RuntimeError, match="can't start"):
        patch.setattr(threading.Thread, "start", fail)
        writer.save(lambda: 1, given_up.append, lambda: given_up.append(1))
    assert given_up == [1]
    writer.wait()
