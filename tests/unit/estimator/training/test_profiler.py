"""The profiler and the curves of a run."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest
import tensorflow as tf

from cerebras_tensorflow import CerebrasEstimator, CSConfig, CSRunConfig
from cerebras_tensorflow.perf.chrome_trace import read_chrome_trace
from tests.unit.estimator import tiny


def profiled(folder: Path, start: int, end: int) -> CerebrasEstimator:
    cs_config = CSConfig(min_stream_bytes=100, op_profiler_config={"start_step": start, "end_step": end})
    config = CSRunConfig(cs_config=cs_config, log_step_count_steps=2, save_summary_steps=None)
    return CerebrasEstimator(tiny.model_fn, str(folder), config=config, params={})


def test_a_run_profiles_the_steps_that_it_was_asked_for_and_writes_published_tags(
    tmp_path: Path, home: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        profiled(tmp_path, 2, 3).train(tiny.input_fn(), steps=4)
    events = json.loads((tmp_path / "chrome_trace.json").read_text())["traceEvents"]
    steps = [event["name"] for event in events if event.get("cat") == "step"]
    assert steps == ["step 2", "step 3"]
    assert {"compute", "layers"} <= {event.get("cat") for event in events}
    assert "2 profiled steps" in caplog.text and "TIME (in ms)" in caplog.text and "optimizer" in caplog.text
    (path,) = (tmp_path / "train").glob("events.out.tfevents.*")
    found = {}
    for event in tf.compat.v1.train.summary_iterator(str(path)):
        for value in event.summary.value:
            found.setdefault(value.tag, []).append(event.step)
    assert set(found) >= {"loss", "local_samples_per_sec", "avg_samples_per_sec", "avg_steps_per_sec"}
    assert found["loss"][-1] == 4


def test_steps_beyond_the_run_are_told(
    tmp_path: Path, home: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CEREBRAS_TRACE_STEP", "9")
    with caplog.at_level(logging.WARNING):
        profiled(tmp_path, 7, 8).train(tiny.input_fn(), steps=2)
    assert "op_profiler_config asks for steps 7 to 8, but this run took 2 steps" in caplog.text
    assert "CEREBRAS_TRACE_STEP is 9, but this run took no such step and ended after step 2" in caplog.text
    assert not (tmp_path / "chrome_trace.json").exists() and not (tmp_path / "trace").exists()


def test_a_traced_step_may_be_a_profiled_one(tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CEREBRAS_TRACE_STEP", "2")
    profiled(tmp_path, 1, 3).train(tiny.input_fn(), steps=3)
    (traced,) = read_chrome_trace(tmp_path / "trace" / "step_2.json")
    steps = read_chrome_trace(tmp_path / "chrome_trace.json")
    assert [step.title for step in steps] == ["step 1", "step 2", "step 3"]
    for timeline in (traced, *steps):
        assert {"compute", "update"} <= {span.stream for span in timeline.spans}
        assert timeline.memory and min(size for _, size in timeline.memory) > 0


def test_a_run_beside_another_profiler_goes_on(tmp_path: Path, home: Path, caplog: pytest.LogCaptureFixture) -> None:
    tf.profiler.experimental.start(str(tmp_path / "own"))
    try:
        with caplog.at_level(logging.WARNING):
            profiled(tmp_path, 1, 2).train(tiny.input_fn(), steps=2)
    finally:
        tf.profiler.experimental.stop()
    assert "No op is recorded, because the profiler of TensorFlow does not start" in caplog.text
    assert list((tmp_path / "own").rglob("*.xplane.pb"))
