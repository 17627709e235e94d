"""Event files of many folders need a bounded number of threads and open files."""

from __future__ import annotations

import itertools
import os
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
import tensorflow as tf

from cerebras_tensorflow.estimator import event_writers
from cerebras_tensorflow.estimator.event_writers import MOST_OPEN, event_writer
from tests.compat import models


def open_event_files(folder: Path) -> int:
    links = [f"/proc/self/fd/{name}" for name in os.listdir("/proc/self/fd")]
    return sum(os.path.realpath(link).startswith(str(folder)) for link in links if os.path.lexists(link))


def writer_threads() -> int:
    return sum(type(thread).__name__ == "_EventLoggerThread" for thread in threading.enumerate())


def values_in(folder: Path) -> list[float]:
    """What the event files of a folder hold, oldest first."""
    values = []
    for path in sorted(folder.glob("events.out.tfevents.*"), key=lambda path: path.stat().st_mtime_ns):
        for event in tf.compat.v1.train.summary_iterator(str(path)):
            values += [value.simple_value for value in event.summary.value]
    return values


def add(folder: Path, value: float) -> None:
    summary = tf.compat.v1.Summary(value=[tf.compat.v1.Summary.Value(tag="a", simple_value=value)])
    with tf.Graph().as_default():
        writer = event_writer(str(folder))
    writer.add_summary(summary, int(value))
    writer.flush()


@pytest.fixture
def _seconds_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each call of time.time() returns a later second."""
    seconds = itertools.count(2_000_000_000)
    monkeypatch.setattr(event_writers, "time", SimpleNamespace(time=lambda: next(seconds)))


@pytest.mark.usefixtures("_seconds_pass")
def test_threads_and_files_stay_bounded_over_many_folders_and_nothing_is_lost(tmp_path: Path) -> None:
    folders = [tmp_path / str(number) for number in range(2 * MOST_OPEN)]
    before = writer_threads()
    for folder in folders:
        add(folder, 1)
        assert open_event_files(tmp_path) <= MOST_OPEN
        assert writer_threads() <= before + MOST_OPEN
    first = folders[0]
    for path in list(first.iterdir()):  # pretend that it is from an earlier second
        path.rename(first / "events.out.tfevents.1.earlier")
    add(first, 2)
    assert sorted(values_in(first)) == [1, 2]
    assert all(values_in(folder) == [1] for folder in folders[1:])


@pytest.mark.usefixtures("_seconds_pass")
def test_a_writer_in_use_stays_open(tmp_path: Path) -> None:
    add(tmp_path / "train", 0)
    for number in range(2 * MOST_OPEN):
        add(tmp_path / str(number), 1)
        add(tmp_path / "train", number + 1)
    assert len(values_in(tmp_path / "train")) == 2 * MOST_OPEN + 1
    assert len(list((tmp_path / "train").iterdir())) == 1


def test_a_writer_of_this_second_stays_open_so_that_its_file_is_not_truncated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_writers, "time", SimpleNamespace(time=lambda: 2_100_000_000))
    for _ in range(2):
        for number in range(MOST_OPEN + 2):
            add(tmp_path / str(number), 1)
    assert values_in(tmp_path / "0") == [1, 1]


def test_a_failure_without_a_message_is_a_warning_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def failing(folder: str) -> None:
        raise OSError

    monkeypatch.setattr(event_writers, "event_writer", failing)
    event_writers.EventFile(str(tmp_path)).flush()
    assert "cannot be written (OSError)" in caplog.text


@pytest.mark.slow
def test_threads_and_descriptors_are_bounded_over_200_calls(tmp_path: Path) -> None:
    counts = []
    for number in range(100):
        estimator = tf.estimator.Estimator(models.linear, str(tmp_path / str(number)), params={})
        estimator.train(models.repeated, steps=2)
        estimator.evaluate(models.once)
        counts.append((len(os.listdir("/proc/self/task")), len(os.listdir("/proc/self/fd"))))
    settled = counts[MOST_OPEN]
    assert max(threads for threads, _ in counts[MOST_OPEN:]) <= settled[0] + 2
    assert max(files for _, files in counts[MOST_OPEN:]) <= settled[1] + 2
