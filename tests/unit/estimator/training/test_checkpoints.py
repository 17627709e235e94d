"""How a run saves: the format, the readers, and that training continues while a checkpoint is written."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from cerebras_tensorflow import CSConfig, CSRunConfig
from cerebras_tensorflow.compat.run_configs import ApplianceRunConfig
from cerebras_tensorflow.errors import CheckpointError
from cerebras_tensorflow.estimator.config.run_settings import run_settings
from cerebras_tensorflow.estimator.training import checkpoint_saver
from cerebras_tensorflow.saver import tf_h5_saver
from cerebras_tensorflow.saver.checkpoint_reader import CheckpointReader, checkpoints_newest_first, open_checkpoint
from cerebras_tensorflow.saver.checkpoint_writer import open_writer
from cerebras_tensorflow.saver.files.atomic import FolderLock
from cerebras_tensorflow.saver.interface import TensorWriter
from tests.unit.estimator.tiny import estimator, input_fn, v1

PIPELINED, STREAMING = "pipelined", "weight_streaming"
PLAIN, APPLIANCE = CSRunConfig(), ApplianceRunConfig(CSConfig())


def values(path: str | Path) -> dict[str, bytes]:
    with open_checkpoint(path) as reader:
        return {name: reader.read(name).tobytes() for name in reader.names()}


@pytest.mark.parametrize(
    "config, mode, job, expected",
    [
        (APPLIANCE, STREAMING, None, True),
        (APPLIANCE, STREAMING, "7", False),
        (APPLIANCE, PIPELINED, None, False),
        (PLAIN, STREAMING, "7", False),
        (PLAIN, STREAMING, None, False),
        (PLAIN, PIPELINED, None, False),
        (PLAIN.replace(checkpoint_format="h5"), PIPELINED, "7", True),
        (APPLIANCE.replace(checkpoint_format="tensorflow"), STREAMING, None, False),
    ],
)
def test_auto_means_hdf5_for_the_appliance_and_tensorflow_under_csrun(
    config: Any, mode: str, job: str | None, expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if job is not None:
        monkeypatch.setenv("CSRUN_JOB_ID", job)
    assert checkpoint_saver.is_h5(run_settings(config), mode) is expected


def test_an_unknown_format_is_refused() -> None:
    with pytest.raises(ValueError, match="checkpoint_format must be one of auto, tensorflow, h5, given: 'hdf5'"):
        CSRunConfig(checkpoint_format="hdf5")


def test_both_modes_resume_from_both_formats_and_all_readers_find_the_newest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def from_start_of(step: int) -> Any:
        return lambda: input_fn()().skip(step)

    unbroken = estimator(tmp_path / "unbroken").train(from_start_of(0), max_steps=8)
    plan = [(STREAMING, "h5", "model-ckpt-2.h5"), (PIPELINED, "h5", "model.ckpt-4.h5")]
    plan += [(STREAMING, "tensorflow", "model-ckpt-6"), (PIPELINED, "tensorflow", "model.ckpt-8")]
    model_dir = tmp_path / "broken"
    step = 0
    for mode, form, name in plan:
        monkeypatch.setenv("CEREBRAS_EXECUTION_MODE", mode)
        run = estimator(model_dir, checkpoint_format=form, keep_checkpoint_max=None)
        run.train(from_start_of(step), max_steps=step + 2)
        step += 2
        assert tf.train.latest_checkpoint(str(model_dir)) == str(model_dir / name) == run.latest_checkpoint()
        assert CheckpointReader.all_checkpoints(model_dir)[-1] == str(model_dir / name)
        assert tf.train.get_checkpoint_state(str(model_dir)).model_checkpoint_path == str(model_dir / name)
    assert values(model_dir / "model.ckpt-8") == values(unbroken.latest_checkpoint() or "")
    stored = CheckpointReader.all_checkpoints(model_dir)
    losses = [run.evaluate(input_fn(epochs=1), checkpoint_path=path)["loss"] for path in stored]
    assert len(losses) == len(stored) >= 8 and losses[-1] < losses[0]


def test_a_run_starts_from_hdf5_from_converted_files_and_from_a_path(mode: str, tmp_path: Path) -> None:
    first = estimator(tmp_path / "first").train(input_fn(), max_steps=3).latest_checkpoint()
    assert first is not None
    h5, back = tmp_path / "x.h5", tmp_path / "back"
    tf_h5_saver.tensorflow_to_h5(first, h5)
    tf_h5_saver.h5_to_tensorflow(h5, back)
    ends = []
    for number, path in enumerate([first, h5, back, f"{back}.index", tmp_path / "first"]):
        run = estimator(tmp_path / f"warm{number}", warm_start_from=str(path))
        run.train(input_fn(), max_steps=1)
        ends.append(values(run.latest_checkpoint() or ""))
    assert all(end == ends[0] for end in ends)
    (tmp_path / "copied").mkdir()
    tf_h5_saver.tensorflow_to_h5(first, tmp_path / "copied" / "model-ckpt-3.h5")
    assert int(estimator(tmp_path / "copied").train(input_fn(), max_steps=4).get_variable_value("global_step")) == 4


class _Gate(TensorWriter):
    """A writer that waits until the gate is open."""

    opened = threading.Event()

    def __init__(self, path: Any) -> None:
        self._writer = open_writer(path)
        self.path = self._writer.path

    def add(self, name: str, array: Any) -> None:
        assert self.opened.wait(60), "training waited for the writer, which waits for training"
        self._writer.add(name, array)

    def add_chunks(self, name: str, dtype: Any, shape: tuple[int, ...], chunks: Any) -> None:
        assert self.opened.wait(60), "training waited for the writer, which waits for training"
        self._writer.add_chunks(name, dtype, shape, chunks)

    def commit(self) -> None:
        self._writer.commit()

    def abort(self) -> None:
        self._writer.abort()


class _OpenAt(v1.train.SessionRunHook):
    """Opens the gate of the writer after some steps."""

    def __init__(self, steps: int) -> None:
        self._left = steps

    def after_run(self, run_context: Any, run_values: Any) -> None:
        self._left -= 1
        if self._left == 0:
            _Gate.opened.set()


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Checkpoints after the first are written only after _OpenAt opens the gate."""
    _Gate.opened = threading.Event()
    monkeypatch.setattr(
        checkpoint_saver, "open_writer", lambda path: open_writer(path) if "-0" in str(path) else _Gate(path)
    )
    yield
    _Gate.opened.set()


@pytest.mark.parametrize("store", ["memory", "file"])
@pytest.mark.usefixtures("gate")
def test_training_continues_while_a_checkpoint_of_an_earlier_step_is_written(
    mode: str, store: str, tmp_path: Path
) -> None:
    if mode == PIPELINED and store == "file":
        pytest.skip("pipelined runs have no store")
    config = {"save_checkpoints_steps": 2, "keep_checkpoint_max": None}
    run = estimator(tmp_path / "run", **config)
    run.config.cs_config.weight_store = store
    run.train(input_fn(), max_steps=3, hooks=[_OpenAt(3)])
    short = estimator(tmp_path / "short").train(input_fn(), max_steps=2)
    name = Path(short.latest_checkpoint() or "").name
    assert values(tmp_path / "run" / name) == values(tmp_path / "short" / name)


def test_an_error_of_the_writer_stops_the_training_and_names_the_file(mode: str, tmp_path: Path) -> None:
    name = "model-ckpt-2" if mode == STREAMING else "model.ckpt-2"
    (tmp_path / f"{name}.index" / "x").mkdir(parents=True)
    with pytest.raises(CheckpointError, match=f"{name}.*cannot be written"):
        estimator(tmp_path, save_checkpoints_steps=2).train(input_fn(), max_steps=50)
    assert (estimator(tmp_path).latest_checkpoint() or "").endswith("-0")
    assert not list(tmp_path.glob(".*partial"))


def test_training_waits_for_the_write_if_copies_do_not_fit_into_memory(
    mode: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(checkpoint_saver, "free_memory_bytes", lambda: 1000)
    with caplog.at_level(logging.INFO, "tensorflow"):
        run = estimator(tmp_path, save_checkpoints_steps=2).train(input_fn(), max_steps=3)
    assert "Training waits while the checkpoint is written" in caplog.text
    assert int(run.get_variable_value("global_step")) == 3


def test_a_second_run_that_saves_into_the_same_model_dir_is_refused(tmp_path: Path) -> None:
    with FolderLock(str(tmp_path)), pytest.raises(CheckpointError, match=r"process \d+ is saving checkpoints there"):
        estimator(tmp_path).train(input_fn(), max_steps=1)
    assert checkpoints_newest_first(tmp_path) == []


def test_after_save_runs_once_the_checkpoint_is_the_latest(mode: str, tmp_path: Path) -> None:
    seen = []

    class Listener(v1.train.CheckpointSaverListener):
        def after_save(self, session: Any, global_step_value: int) -> None:
            seen.append((global_step_value, tf.train.latest_checkpoint(str(tmp_path))))

    estimator(tmp_path, save_checkpoints_steps=1).train(input_fn(), max_steps=2, saving_listeners=[Listener()])
    assert [(step, (path or "").rpartition("-")[2]) for step, path in seen] == [(0, "0"), (1, "1"), (2, "2")]


def test_a_flipped_bit_makes_all_calls_use_the_checkpoint_before(mode: str, tmp_path: Path) -> None:
    """latest_checkpoint() before training names the checkpoint from which training starts; scripts skip input by it."""
    estimator(tmp_path, save_checkpoints_steps=2).train(input_fn(), max_steps=4)
    newest = checkpoints_newest_first(tmp_path)[0]
    data = Path(f"{newest}.data-00000-of-00001")
    content = bytearray(data.read_bytes())
    content[len(content) // 2] ^= 1
    data.write_bytes(content)
    run = estimator(tmp_path)
    assert (run.latest_checkpoint() or "").endswith("-2")
    assert int(run.get_variable_value("global_step")) == 2
    run.train(input_fn(), steps=1)
    assert int(run.get_variable_value("global_step")) == 3


def test_saved_values_keep_dtype_and_shape(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CEREBRAS_EXECUTION_MODE", STREAMING)
    run = estimator(tmp_path, checkpoint_format="h5").train(input_fn(), max_steps=1)
    with tf_h5_saver.H5Checkpoint(run.latest_checkpoint() or "") as checkpoint:
        assert checkpoint["w"].dtype == np.float32 and checkpoint["w"].shape == (4, 64)
        assert checkpoint.verify() > 0


def test_keep_checkpoint_every_n_hours_keeps_older_checkpoints(tmp_path: Path) -> None:
    def kept(name: str, **settings: Any) -> list[int]:
        config = {"save_checkpoints_secs": 1e-6, "checkpoint_format": "h5", "keep_checkpoint_max": 2, **settings}
        estimator(tmp_path / name, **config).train(input_fn(), max_steps=4)
        paths = CheckpointReader.all_checkpoints(tmp_path / name)
        return sorted(int(Path(path).stem.rpartition("-")[2]) for path in paths)

    assert kept("newest") == [3, 4]
    assert kept("some", keep_checkpoint_every_n_hours=1e-12) == [1, 2, 3, 4]


def widened(mode: str, y: Any, labels: Any) -> dict[str, Any]:
    """A spec whose model has one variable more, for tiny.model_fn."""
    v1.get_variable("more", [3], initializer=v1.zeros_initializer())
    return {}


@pytest.mark.parametrize("mode", [PIPELINED, STREAMING])
def test_a_checkpoint_of_a_larger_model_is_resumed_and_what_is_left_over_is_logged(
    mode: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("CEREBRAS_EXECUTION_MODE", mode)
    estimator(tmp_path, {"spec": widened}).train(input_fn(), max_steps=2)
    caplog.set_level(logging.WARNING)
    estimator(tmp_path).train(input_fn(), max_steps=3)
    assert "holds 1 tensors that this model lacks: more. They are not in the next checkpoint." in caplog.text


def test_a_checkpoint_of_a_smaller_model_is_refused_with_what_is_missing(tmp_path: Path) -> None:
    estimator(tmp_path).train(input_fn(), max_steps=2)
    with pytest.raises(CheckpointError, match="lacks 1 of this model's variables: more"):
        estimator(tmp_path, {"spec": widened}).train(input_fn(), max_steps=3)


def test_a_run_that_resumes_says_that_it_does_not_use_warm_start_from(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    estimator(tmp_path).train(input_fn(), max_steps=2)
    estimator(tmp_path, warm_start_from=str(tmp_path / "none")).train(input_fn(), max_steps=3)
    assert f"warm_start_from is not used: the run resumes from {tmp_path}/model.ckpt-2." in caplog.text


def test_a_checkpoint_without_a_global_step_starts_at_0_everywhere(tmp_path: Path) -> None:
    estimator(tmp_path / "first").train(input_fn(), max_steps=2)
    converted = tmp_path / "converted" / "model.ckpt-7"
    converted.parent.mkdir()
    with open_checkpoint(tmp_path / "first" / "model.ckpt-2") as reader, open_writer(converted) as writer:
        for name in reader.names():
            if name != "global_step":
                writer.add(name, reader.read(name))
    evaluated = estimator(tmp_path / "other").evaluate(input_fn(epochs=1), checkpoint_path=str(converted))
    trained = estimator(tmp_path / "first").evaluate(input_fn(epochs=1))
    assert evaluated["global_step"] == 0
    assert evaluated["loss"] == trained["loss"]
    predicted = estimator(tmp_path / "other").predict(input_fn(epochs=1), checkpoint_path=str(converted))
    assert len(list(predicted)) == 24
