"""Training on several CSX through MPI: the same checkpoint as on one, and clear errors."""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from cerebras_tensorflow import CerebrasEstimator, CSConfig, CSRunConfig
from cerebras_tensorflow.config import env
from cerebras_tensorflow.errors import CollectiveError, CompileError, SettingsError, StoreError
from cerebras_tensorflow.estimator.execution import several_csx
from cerebras_tensorflow.estimator.execution.owners_write import OwnersWrite
from cerebras_tensorflow.graph.micro_batches import MicroBatches
from cerebras_tensorflow.graph.program import Program
from cerebras_tensorflow.runtime.collectives import launch
from cerebras_tensorflow.runtime.collectives.in_process import make_group
from cerebras_tensorflow.runtime.collectives.interface import Collectives
from cerebras_tensorflow.runtime.collectives.relay import SECRET_FILE
from cerebras_tensorflow.runtime.host import stopping
from cerebras_tensorflow.saver.checkpoint_reader import open_checkpoint

v1 = tf.compat.v1
GLOBAL_BATCH, MICRO_BATCH = 12, 2


def model_fn(features: Any, labels: Any, mode: str, params: dict[str, Any]) -> Any:
    """A classifier with dropout and batch normalization, which takes Python functions if params ask for them."""
    x = features
    if params.get("python"):
        x = tf.numpy_function(lambda value: value, [x], tf.float32)
        x.set_shape(features.shape)
    if params.get("generator"):
        x += tf.random.Generator.from_seed(1).normal([8])
    w = v1.get_variable("w", [8, 4], initializer=v1.random_normal_initializer(seed=1))
    x = v1.nn.dropout(tf.tanh(x @ w), rate=0.1)
    if params.get("large"):
        x *= tf.reduce_mean(v1.get_variable("large", [512, 1024], initializer=v1.ones_initializer()))
    average = v1.get_variable("average", [4], initializer=v1.zeros_initializer(), trainable=False)
    v1.add_to_collection("update_ops", average.assign_sub(0.1 * (average - tf.reduce_mean(x, 0))))
    loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, x))
    with tf.control_dependencies(v1.get_collection("update_ops")):
        train_op = v1.train.AdamOptimizer(0.1).minimize(loss, v1.train.get_or_create_global_step())
    metrics = {"accuracy": v1.metrics.accuracy(labels, tf.argmax(x, 1))} if mode == "eval" else None
    return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=train_op, eval_metric_ops=metrics)


def input_fn(params: dict[str, Any]) -> Any:
    """One stream of samples, in batches of params' size."""
    random = np.random.default_rng(0)
    x, y = random.normal(size=(240, 8)).astype(np.float32), random.integers(0, 4, 240)
    dataset = tf.data.Dataset.from_tensor_slices((x, y)).skip(params.get("skip", 0)).repeat()
    return dataset.batch(params["train_input"]["batch_size"], drop_remainder=True)


def estimator(
    folder: Path, num_csx: int, batch_size: int, micro_batch_size: Any = MICRO_BATCH, **params: Any
) -> CerebrasEstimator:
    config = CSRunConfig(
        cs_config=CSConfig(num_csx=num_csx, micro_batch_size=micro_batch_size, min_stream_bytes=64),
        tf_random_seed=1,
        save_checkpoints_steps=100,
    )
    section = {"batch_size": batch_size, **params.pop("train_input", {})}
    return CerebrasEstimator(model_fn, str(folder), config=config, params={"train_input": section, **params})


def weights(folder: Path) -> dict[str, bytes]:
    path = tf.train.latest_checkpoint(str(folder))
    assert path is not None
    with open_checkpoint(path) as reader:
        return {name: np.asarray(reader.read(name)).tobytes() for name in reader.names()}


@pytest.fixture
def one_csx(tmp_path: Path) -> dict[str, bytes]:
    """The weights after 4 steps on one CSX."""
    estimator(tmp_path / "one", 1, GLOBAL_BATCH).train(input_fn, steps=4)
    return weights(tmp_path / "one")


def test_two_processes_train_the_weights_of_one(
    tmp_path: Path, one_csx: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("mpi4py")
    folder = tmp_path / "two"
    mine = tmp_path / "mine"
    mine.write_text("precious")
    (folder / "csx").mkdir(parents=True)  # of a model_dir of somebody else
    for name in ("secret", "mpi.log", "first"):
        (folder / "csx" / name).symlink_to(mine)
    os.mkfifo(folder / "csx" / "run.json")
    short = tmp_path / "short"
    short.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(short))
    left: list[list[Path]] = []

    class Looker(v1.train.SessionRunHook):  # type: ignore[misc]
        def after_run(self, run_context: Any, run_values: Any) -> None:
            left.append(list(short.glob("cs_csx_*")))

    estimator(folder, 2, GLOBAL_BATCH // 2).train(input_fn, hooks=[Looker()], steps=4)
    assert left == [[]] * 4  # a kill of this process would leave nothing outside model_dir
    assert weights(folder) == one_csx
    measured = json.loads((folder / "performance" / "performance.json").read_text())
    gradients = 8 * 4 * 4  # bytes of the gradient of w
    assert measured["num_csx"] == 2
    # Each of 2 groups of micro-batches of rank 0, and the mean; 2 scalars (the loss) and a moving average besides.
    assert gradients <= measured["wire_bytes_sent_per_step"] <= 3 * gradients
    assert not list((folder / "csx").glob("*.error"))
    assert mine.read_text() == "precious"
    assert (folder / "csx").stat().st_mode & 0o777 == 0o700


def test_a_link_in_place_of_the_folder_of_the_processes_is_refused(tmp_path: Path) -> None:
    target = tmp_path / "mine"
    (target / "program").mkdir(parents=True)
    (tmp_path / "csx").symlink_to(target)
    program = Program("pipelined", v1.GraphDef(), "step", (), (), micro_batches=MicroBatches(4, (), (), num_csx=2))
    request = several_csx.CsxRequest(program, "train", "setup", v1.ConfigProto(), CSConfig(), str(tmp_path), 1)
    with pytest.raises(StoreError, match=r"csx is not a folder of this user.*choose another model_dir"):
        several_csx.start(request, ExitStack())
    assert (target / "program").exists()


@pytest.mark.parametrize("name", ["run.json", launch.MPI_LOG, launch.FIRST_FILE, launch.SECRET_FILE])
def test_a_file_of_the_processes_that_cannot_be_written_is_a_clear_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    program = Program("pipelined", v1.GraphDef(), "step", (), (), micro_batches=MicroBatches(4, (), (), num_csx=2))
    request = several_csx.CsxRequest(program, "train", "setup", v1.ConfigProto(), CSConfig(), str(tmp_path), 1)
    started = several_csx.launch.start

    def start(num_csx: int, module: str, folder: Path, limit_s: float) -> Any:
        (folder / name).mkdir()
        return started(num_csx, module, folder, limit_s)

    if name == "run.json":
        monkeypatch.setattr(several_csx.cache, "save", lambda place, *_: place.with_name(name).mkdir() or True)
    else:
        monkeypatch.setattr(several_csx.launch, "start", start)
    with ExitStack() as cleanup, pytest.raises(StoreError, match=rf"the CSX cannot start.*{tmp_path}/csx.*{name}"):
        several_csx.start(request, cleanup)


def test_a_second_run_leaves_the_folder_of_a_living_one_and_replaces_that_of_a_dead_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = Program("pipelined", v1.GraphDef(), "step", (), (), micro_batches=MicroBatches(4, (), (), num_csx=2))
    request = several_csx.CsxRequest(program, "train", "setup", v1.ConfigProto(), CSConfig(), str(tmp_path), 1)

    def started(_size: int, _module: str, folder: Path, _limit_s: float) -> Collectives:
        (folder / SECRET_FILE).write_bytes(bytes(32))
        return make_group(1)[0]

    monkeypatch.setattr(several_csx.launch, "start", started)
    mine = tmp_path / "csx" / "rank-1.log"
    with ExitStack() as first:
        several_csx.start(request, first)
        mine.write_text("the first run's")
        with pytest.raises(StoreError, match=rf"csx is in use by another run \(process {os.getpid()} on .*model_dir"):
            several_csx.start(request, ExitStack())
        assert mine.read_text() == "the first run's"
    with ExitStack() as second:  # what the first run left has no lock, as after a kill
        several_csx.start(request, second)
        assert not mine.exists()


@pytest.mark.slow
def test_the_processes_share_the_writing_of_a_pipelined_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    place = OwnersWrite.place

    def recorded(self: OwnersWrite, name: str, *words: Any) -> bool:
        asked.append(name)
        return place(self, name, *words)

    monkeypatch.setattr(OwnersWrite, "place", recorded)
    for num_csx in (1, 3):
        run = estimator(tmp_path / str(num_csx), num_csx, GLOBAL_BATCH // num_csx, large=True)
        run.train(input_fn, steps=2).train(input_fn, steps=2)
        assert len(asked) == (0 if num_csx == 1 else 4)  # two of "large" and its two slots, in each run
    assert weights(tmp_path / "1") == weights(tmp_path / "3")


@pytest.mark.slow
@pytest.mark.parametrize("mode", [env.PIPELINED, env.WEIGHT_STREAMING])
def test_a_run_resumes_on_another_number_of_csx(
    mode: str, tmp_path: Path, one_csx: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(env.EXECUTION_MODE, mode)
    estimator(tmp_path, 2, GLOBAL_BATCH // 2).train(input_fn, steps=2)
    estimator(tmp_path, 3, GLOBAL_BATCH, train_input={"global_batch_size": GLOBAL_BATCH}, skip=24).train(
        input_fn, steps=2
    )
    assert weights(tmp_path) == one_csx


@pytest.mark.slow
def test_a_killed_rank_ends_the_run_and_nothing_half_saved_is_left(tmp_path: Path) -> None:
    class Killer(v1.train.SessionRunHook):  # type: ignore[misc]
        def after_run(self, run_context: Any, run_values: Any) -> None:
            if run_context.session.global_step == 2:
                os.kill(int((tmp_path / "csx" / "rank-1").read_text().split()[1]), signal.SIGKILL)

    with pytest.raises(CollectiveError, match=r"rank 1 on .* ended without an error.*rank-1.log"):
        estimator(tmp_path, 2, GLOBAL_BATCH // 2).train(input_fn, hooks=[Killer()], steps=100)
    assert estimator(tmp_path, 1, GLOBAL_BATCH).latest_checkpoint() == str(tmp_path / "model.ckpt-0")


@pytest.mark.slow
def test_a_signal_beside_a_stopped_rank_saves_the_last_whole_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Stopper(v1.train.SessionRunHook):  # type: ignore[misc]
        def before_run(self, run_context: Any) -> None:
            if run_context.session.global_step == 2:
                os.kill(int((tmp_path / "two" / "csx" / "rank-1").read_text().split()[1]), signal.SIGSTOP)
                os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(stopping, "ANSWER_LIMIT_S", 3.0)
    with pytest.raises(SystemExit) as end:
        estimator(tmp_path / "two", 2, GLOBAL_BATCH // 2).train(input_fn, hooks=[Stopper()], steps=100)
    assert end.value.code == 128 + signal.SIGTERM
    estimator(tmp_path / "one", 1, GLOBAL_BATCH).train(input_fn, steps=2)
    assert weights(tmp_path / "two") == weights(tmp_path / "one")


@pytest.mark.parametrize(
    ("missing", "params", "message"),
    [
        (True, {}, r"pip install cerebras_tensorflow\[mpi\]"),
        (False, {"train_input": {"global_batch_size": "12"}}, "global_batch_size is '12': expected a number"),
    ],
)
def test_what_needs_no_graph_is_refused_before_model_fn_and_before_anything_is_written(
    missing: bool, params: dict[str, Any], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if missing:
        monkeypatch.setitem(sys.modules, "mpi4py", None)

    def never(features: Any, labels: Any, mode: str, params: dict[str, Any]) -> Any:
        raise AssertionError("model_fn was called")

    config = CSRunConfig(cs_config=CSConfig(num_csx=2))
    with pytest.raises(SettingsError, match=message):
        CerebrasEstimator(never, str(tmp_path / "new"), config=config, params=params).train(input_fn, steps=1)
    assert not (tmp_path / "new").exists()


def by_python(folder: Path) -> CerebrasEstimator:
    return estimator(folder, 2, 6, python=True)


def by_generator(folder: Path) -> CerebrasEstimator:
    return estimator(folder, 2, 6, generator=True)


def too_few(folder: Path) -> CerebrasEstimator:
    return estimator(folder, 4, 12, 6, train_input={"global_batch_size": 12})


def wrong_size(folder: Path) -> CerebrasEstimator:
    return estimator(folder, 2, 6, train_input={"global_batch_size": 10})


@pytest.mark.parametrize(
    ("make", "kind", "message"),
    [
        (by_python, CompileError, "calls a Python function of this process"),
        (by_generator, CompileError, "draws from a tf.random.Generator"),
        (too_few, SettingsError, "has only 2 micro-batches of 6: each CSX needs one"),
        (wrong_size, SettingsError, "global_batch_size is 10 and num_csx 2, but the batches of input_fn have 6"),
    ],
)
def test_a_run_that_several_csx_cannot_share_is_refused(
    make: Callable[[Path], CerebrasEstimator], kind: type[Exception], message: str, tmp_path: Path
) -> None:
    pytest.importorskip("mpi4py")
    with pytest.raises(kind, match=message):
        make(tmp_path).train(input_fn, steps=1)
    assert not (tmp_path / "csx").exists()


def test_tensors_as_input_are_refused(tmp_path: Path) -> None:
    def tensors(params: dict[str, Any]) -> Any:
        return tf.ones([6, 8]), tf.zeros([6], tf.int64)

    pytest.importorskip("mpi4py")
    with pytest.raises(SettingsError, match="num_csx is 2, but input_fn returns tensors"):
        estimator(tmp_path, 2, 6).train(tensors, steps=1)
