"""Options of the cluster: labels reach the job, and options without effect are logged."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from cerebras_tensorflow.config import env
from cerebras_tensorflow.system import jobs
from reference_implementations.common.cluster import prepare
from reference_implementations.common.sections import RunSettings


def test_labels_reach_the_job_of_the_launch(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = jobs.submit(env.read().home, "cs2-embedded", env.WEIGHT_STREAMING, labels={"user": "me"})
    monkeypatch.setenv(env.JOB_ID, str(job.number))
    prepare(RunSettings(job_labels=("model=gpt2", "note=a=b")))
    assert job.record.labels == {"user": "me", "model": "gpt2", "note": "a=b"}
    job.finish(jobs.SUCCEEDED, "")


@pytest.mark.parametrize("job_id", ["\u00b2", "9" * 5000])
def test_labels_without_a_job_are_logged(
    job_id: str, home: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    monkeypatch.setenv(env.JOB_ID, job_id)
    prepare(RunSettings(job_labels=("model=gpt2",)))
    assert "job_labels are ignored" in caplog.text


def test_options_without_effect_are_logged(home: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    prepare(RunSettings(num_csx=2, num_wgt_servers=3, job_labels=("model=gpt2",)))
    assert "num_wgt_servers=3: no change here" in caplog.text
    assert "job_labels are ignored" in caplog.text


def test_one_csx_is_not_logged(home: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    prepare(RunSettings(num_csx=1))
    assert caplog.text == ""
