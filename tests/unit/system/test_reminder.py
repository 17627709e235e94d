"""A job tells what it waits for when that changes, and every ten minutes."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from cerebras_tensorflow.system import jobs, reminder


def test_a_reason_is_reported_when_it_changes_and_every_ten_minutes(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(reminder, "time", SimpleNamespace(monotonic=lambda: now[0]))
    told: list[str] = []
    reminding = reminder.Reminder(told.append)
    for minute, reason in [(0, "busy"), (5, "busy"), (9, "rebooting"), (18, "rebooting"), (20, "rebooting")]:
        now[0] = 60.0 * minute
        reminding.note(reason)
    assert told == ["busy", "rebooting", "rebooting (still, after 11 minutes)"]


def test_a_job_without_a_record_reports_once_that_the_system_is_rebooting() -> None:
    answers, told = [False, False, False, True], []
    jobs.unrecorded("lab", "pipelined").wait_for_wafer(lambda: answers.pop(0), told.append)
    assert told == ["lab is rebooting"]
