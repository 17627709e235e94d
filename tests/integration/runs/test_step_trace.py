"""The trace of a measured step: it shows the moves that overlap computation, and a full disk does not end the run."""

from __future__ import annotations

import logging
import re
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from cerebras_tensorflow import CerebrasEstimator, CSConfig, CSEstimatorSpec, CSRunConfig
from cerebras_tensorflow.estimator.training.recording import Recording, StepRecorder
from cerebras_tensorflow.perf.chrome_trace import read_chrome_trace
from cerebras_tensorflow.perf.timeline import COMPUTE, LOAD, STORE, UPDATE, Span
from cerebras_tensorflow.runtime.weight_store.file import FileStore
from tests.numerics.streaming import build, opened
from tests.numerics.test_weight_streaming_is_exact import adam

v1 = tf.compat.v1
BATCH, WIDTH, LAYERS, STEP = 256, 512, 8, 3


def model_fn(features: Any, labels: Any, mode: str, params: Any) -> Any:
    """Layers of a megabyte each, with enough to compute for each."""
    x = features
    for layer in range(LAYERS):
        x = tf.tanh(tf.matmul(x, v1.get_variable(f"w{layer}", [WIDTH, WIDTH])))
    loss = tf.reduce_mean(tf.square(x))
    return CSEstimatorSpec(
        mode, loss=loss, train_op=v1.train.AdamOptimizer(0.01).minimize(loss, v1.train.get_global_step())
    )


def input_fn(params: Any) -> Any:
    """The same batch each time."""
    x = np.random.default_rng(1).normal(size=(BATCH, WIDTH)).astype(np.float32)
    return tf.data.Dataset.from_tensors((x, x)).repeat()


def overlap(some: Span, other: Span) -> bool:
    return some.begin_s < other.end_s and other.begin_s < some.end_s


def test_moves_of_a_file_store_overlap_computation(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("CEREBRAS_EXECUTION_MODE", "weight_streaming")
    monkeypatch.setenv("CEREBRAS_TRACE_STEP", str(STEP))
    settings = CSConfig(weight_store="file", memory_budget="1000GB", stream_window_bytes=4_000_000)  # not mapped
    config = CSRunConfig(cs_config=settings, save_summary_steps=None, log_step_count_steps=None)
    with caplog.at_level(logging.INFO):
        CerebrasEstimator(model_fn, str(tmp_path), config=config, params={}).train(input_fn, steps=STEP)
    (timeline,) = read_chrome_trace(tmp_path / "trace" / f"step_{STEP}.json")
    work = [span for span in timeline.spans if span.stream in (COMPUTE, UPDATE)]
    for stream in (LOAD, STORE):
        moves = [span for span in timeline.spans if span.stream == stream]
        assert len(moves) >= 3 * LAYERS
        assert any(overlap(move, other) for move in moves for other in work), stream
    assert 0 < timeline.overlap() <= 1
    said = re.search(r"(\d+)% of that overlapped computation", caplog.text)
    assert said and int(said[1]) == pytest.approx(100 * timeline.overlap(), abs=1)


def test_a_run_continues_if_its_trace_cannot_be_written(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("CEREBRAS_TRACE_STEP", "1")
    trace = tmp_path / "trace" / "step_1.json"
    trace.mkdir(parents=True)
    config = CSRunConfig(save_summary_steps=None, log_step_count_steps=None)
    estimator = CerebrasEstimator(model_fn, str(tmp_path), config=config, params={})
    with caplog.at_level(logging.INFO):
        estimator.train(input_fn, steps=2)
    assert estimator.get_variable_value("global_step") == 2
    warnings = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert len(warnings) == 1
    assert warnings[0].startswith(f"The trace of step 1 in {trace.parent} is incomplete or missing ([Errno 21]")


def test_the_trace_names_the_spilled_values(tmp_path: Path) -> None:
    built = build(adam)
    with opened(built, "weight_streaming", 1, lambda specs: FileStore(specs, tmp_path)) as session:
        recording = Recording()
        recording.begin()
        recorder = StepRecorder(session, recording)
        session.run(built.train_op)
        recorder.stop()
        recording.end()
        names = {span.name for span in recorder.timeline("a step").spans}
        assert names >= {spec.name for spec in session.program.spilled} != set()


def test_a_step_that_fails_while_it_is_traced_leaves_no_thread(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(features: Any, labels: Any, mode: str, params: Any) -> Any:
        spec = model_fn(features, labels, mode, params)
        with tf.control_dependencies([tf.debugging.assert_less(v1.train.get_global_step(), np.int64(1))]):
            return spec._replace(loss=tf.identity(spec.loss))

    monkeypatch.setenv("CEREBRAS_TRACE_STEP", "2")
    config = CSRunConfig(save_summary_steps=None, log_step_count_steps=None)
    with pytest.raises(tf.errors.InvalidArgumentError):
        CerebrasEstimator(failing, str(tmp_path), config=config, params={}).train(input_fn, steps=3)
    assert not [thread for thread in threading.enumerate() if thread.name == "memory-sampler"]
