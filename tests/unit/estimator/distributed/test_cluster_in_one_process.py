"""A chief and its parameter server in this process: what a clustered run does without other processes."""

from __future__ import annotations

import json
import logging
import shutil
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from cerebras_tensorflow.errors import SettingsError
from cerebras_tensorflow.estimator.config.run_config import RunConfig
from cerebras_tensorflow.estimator.config.run_settings import run_settings
from cerebras_tensorflow.estimator.distributed import server as servers
from cerebras_tensorflow.estimator.distributed.tasks import worker_delay_s
from cerebras_tensorflow.estimator.tf_estimator import Estimator
from cerebras_tensorflow.estimator.train_and_evaluate import EvalSpec, TrainSpec, train_and_evaluate
from cerebras_tensorflow.saver import tf_h5_saver
from tests.unit.estimator.tiny import input_fn, model_fn, v1

SPEC = EvalSpec(input_fn(epochs=1), throttle_secs=0)


def free_address() -> str:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{one.getsockname()[1]}"


def set_task(patch: pytest.MonkeyPatch, jobs: Any, kind: str, index: int = 0) -> None:
    patch.setenv("TF_CONFIG", json.dumps({"cluster": jobs, "task": {"type": kind, "index": index}}))


@pytest.fixture(scope="module")
def jobs() -> dict[str, list[str]]:
    """A cluster whose servers run in this process."""
    result = {"master": [free_address()], "worker": [free_address()], "ps": [free_address()]}
    for job in result:
        config = v1.ConfigProto()
        tf.distribute.Server(result, job_name=job, task_index=0, config=config)
    return result


@pytest.fixture
def cluster(jobs: dict[str, list[str]], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Estimator]:
    """Return a function that makes the estimator of a task, whose server runs already."""
    monkeypatch.setattr("cerebras_tensorflow.estimator.distributed.tasks.start_server", lambda settings: None)

    def make(folder: Path, model: Any = model_fn, task: str = "master", **settings: Any) -> Estimator:
        set_task(monkeypatch, jobs, task)
        return Estimator(model, str(folder), RunConfig(tf_random_seed=1, **{"save_checkpoints_steps": 2, **settings}))

    return make


def test_a_master_trains_on_the_server_and_evaluates_here(tmp_path: Path, cluster: Any) -> None:
    devices: dict[str, str] = {}

    class Sees(v1.train.SessionRunHook):  # type: ignore[misc]
        def begin(self) -> None:
            graph = v1.get_default_graph()
            devices.update({op.type: op.device for op in graph.get_operations()})

    estimator = cluster(tmp_path)
    train_and_evaluate(estimator, TrainSpec(input_fn(), 4, [Sees()]), SPEC)
    assert devices["VarHandleOp"] == "/job:ps/task:0"
    assert devices["IteratorV2"] == "/job:master/task:0/device:CPU:0"
    assert devices["MatMul"] == "/job:master/task:0"
    assert estimator.get_variable_value("global_step") == 4
    assert sorted(estimator.evaluate(input_fn(epochs=1))) == ["global_step", "loss"]


def test_a_local_run_and_a_cluster_continue_each_other(
    tmp_path: Path, cluster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = Estimator(model_fn, str(tmp_path / "whole"), RunConfig(tf_random_seed=1))
    whole.train(input_fn(), max_steps=4)
    local = Estimator(model_fn, str(tmp_path / "parts"), RunConfig(tf_random_seed=1))
    local.train(input_fn(), max_steps=1)
    cluster(tmp_path / "parts").train(lambda: input_fn()().skip(1), max_steps=3)
    monkeypatch.delenv("TF_CONFIG")
    local.train(lambda: input_fn()().skip(3), max_steps=4)
    for name in ("w", "out"):
        np.testing.assert_allclose(whole.get_variable_value(name), local.get_variable_value(name), rtol=1e-6, atol=1e-7)
    assert local.get_variable_value("global_step") == 4


def test_listeners_and_the_hooks_of_a_spec_are_called(tmp_path: Path, cluster: Any) -> None:
    saved: list[int] = []
    seen: list[str] = []

    class Listener(v1.train.CheckpointSaverListener):  # type: ignore[misc]
        def after_save(self, session: Any, global_step_value: int) -> None:
            saved.append(int(global_step_value))

    class Hook(v1.train.SessionRunHook):  # type: ignore[misc]
        def __init__(self, name: str) -> None:
            self._name = name

        def end(self, session: Any) -> None:
            seen.append(self._name)

    def with_hooks(features: Any, labels: Any, mode: str, params: Any) -> Any:
        given = {"training_hooks": [Hook("all")], "training_chief_hooks": [Hook("chief")]}
        return model_fn(features, labels, mode, {"spec": lambda *_: given if mode == "train" else {}})

    cluster(tmp_path, with_hooks).train(input_fn(), [Hook("caller")], steps=3, saving_listeners=[Listener()])
    assert sorted(seen) == ["all", "caller", "chief"]
    assert saved == [0, 2, 3]


def test_a_user_s_saver_hook_replaces_ours_and_gets_the_listeners(tmp_path: Path, cluster: Any) -> None:
    saved: list[int] = []

    class Listener(v1.train.CheckpointSaverListener):  # type: ignore[misc]
        def after_save(self, session: Any, global_step_value: int) -> None:
            saved.append(int(global_step_value))

    own = v1.train.CheckpointSaverHook(str(tmp_path / "own"), save_steps=100)
    cluster(tmp_path / "model").train(input_fn(), [own], steps=3, saving_listeners=[Listener()])
    assert saved == [0, 3]
    assert tf.train.latest_checkpoint(str(tmp_path / "model")) is None
    assert tf.train.latest_checkpoint(str(tmp_path / "own")) is not None


def test_listeners_without_checkpoints_are_refused(tmp_path: Path, cluster: Any) -> None:
    estimator = cluster(tmp_path, save_checkpoints_steps=None, save_checkpoints_secs=None)
    with pytest.raises(ValueError, match="There should be a CheckpointSaverHook to use saving_listeners"):
        estimator.train(input_fn(), steps=1, saving_listeners=[v1.train.CheckpointSaverListener()])


def test_a_finished_run_is_skipped(tmp_path: Path, cluster: Any, caplog: pytest.LogCaptureFixture) -> None:
    cluster(tmp_path).train(input_fn(), max_steps=2)
    with caplog.at_level(logging.INFO, "tensorflow"):
        cluster(tmp_path).train(input_fn(), max_steps=2)
    assert "Skipping training since max_steps has already saved" in caplog.text


def test_a_warm_start_sets_the_variables_of_a_new_run(tmp_path: Path, cluster: Any) -> None:
    first = cluster(tmp_path / "first")
    first.train(input_fn(), steps=3)
    config = RunConfig(save_checkpoints_steps=100)
    second = Estimator(model_fn, str(tmp_path / "second"), config, warm_start_from=first.model_dir)
    second.train(lambda: input_fn()().take(0), steps=1)
    assert np.array_equal(first.get_variable_value("w"), second.get_variable_value("w"))


def test_an_hdf5_checkpoint_is_refused_by_name(tmp_path: Path, cluster: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    local = Estimator(model_fn, str(tmp_path), RunConfig(checkpoint_format="h5"))
    local.train(input_fn(), max_steps=1)
    with pytest.raises(SettingsError, match=r"is an HDF5 checkpoint.*h5-to-tensorflow"):
        cluster(tmp_path).train(input_fn(), max_steps=2)


def test_a_warm_start_from_a_saved_model_sets_the_variables(tmp_path: Path, cluster: Any) -> None:
    first = cluster(tmp_path / "first")
    first.train(input_fn(), steps=1)
    receiver = tf.estimator.export.ServingInputReceiver

    def serving() -> Any:
        x = v1.placeholder(tf.float32, [None, 4])
        return receiver({"x": x}, x)

    exported = first.export_saved_model(str(tmp_path / "exports"), serving)
    config = RunConfig(save_checkpoints_steps=100)
    second = Estimator(model_fn, str(tmp_path / "second"), config, warm_start_from=exported)
    second.train(lambda: input_fn()().take(0), steps=1)
    assert np.array_equal(first.get_variable_value("w"), second.get_variable_value("w"))


def test_a_warm_start_that_tensorflow_cannot_read_is_refused_by_name(tmp_path: Path, cluster: Any) -> None:
    tf_h5_saver.save(tmp_path / "w.h5", {"w": np.zeros([4, 64], np.float32)})
    cluster(tmp_path)  # sets TF_CONFIG
    for path, text in ((str(tmp_path / "w.h5"), "is an HDF5 checkpoint"), ("s3://bucket/w", "is in object storage")):
        estimator = Estimator(model_fn, str(tmp_path / "new"), RunConfig(), warm_start_from=path)
        with pytest.raises(SettingsError, match=f"{text}.*h5-to-tensorflow"):
            estimator.train(input_fn(), steps=1)


def test_settings_that_a_cluster_does_not_use_are_named(
    tmp_path: Path, cluster: Any, caplog: pytest.LogCaptureFixture
) -> None:
    cluster(tmp_path)  # sets TF_CONFIG
    config = RunConfig(tf_random_seed=1)
    params = {"train_input": {"micro_batch_size": 2}}
    with caplog.at_level(logging.WARNING, "tensorflow"):
        Estimator(model_fn, str(tmp_path), config, params).train(input_fn(), steps=1)
    assert "Not used, since this run is in TensorFlow's own session: micro_batch_size=2." in caplog.text


def test_nan_ends_the_run(tmp_path: Path, cluster: Any) -> None:
    def bad(features: Any, labels: Any, mode: str, params: Any) -> Any:
        return model_fn(features, labels * np.nan, mode, params)

    with pytest.raises(v1.train.NanLossDuringTrainingError):
        cluster(tmp_path, bad).train(input_fn(), steps=2)


def test_a_worker_continues_with_the_chief_s_variables_and_writes_no_checkpoint(tmp_path: Path, cluster: Any) -> None:
    cluster(tmp_path / "chief").train(input_fn(), steps=3)
    worker = cluster(tmp_path / "worker", task="worker", save_summary_steps=None)
    saw: list[int] = []

    class Sees(v1.train.SessionRunHook):  # type: ignore[misc]
        def after_create_session(self, session: Any, coord: Any) -> None:
            saw.append(int(session.run(v1.train.get_global_step())))

    worker.train(input_fn(), [Sees()], steps=2)
    assert saw == [3]
    assert worker.latest_checkpoint() is None


def test_a_chief_that_stops_early_stops_its_workers(tmp_path: Path, cluster: Any) -> None:
    make_hook = tf.estimator.experimental.make_early_stopping_hook
    asked: list[bool] = []
    chief = cluster(tmp_path / "chief")
    chief.train(input_fn(), [make_hook(chief, lambda: True, None, 1)], steps=50)
    last = chief.get_variable_value("global_step")
    assert last < 5
    assert chief.get_variable_value("signal_early_stopping/STOP")
    worker = cluster(tmp_path / "worker", task="worker")
    worker.train(input_fn(), [make_hook(worker, lambda: asked.append(True), None, 1)], steps=50)
    assert not asked, "only the chief asks"


def test_a_worker_waits_for_the_chief_s_last_checkpoint(
    tmp_path: Path, cluster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_hook = tf.estimator.experimental.make_stop_at_checkpoint_step_hook
    chief = cluster(tmp_path)
    chief.train(input_fn(), [make_hook(chief, 3)])
    assert chief.get_variable_value("global_step") == 3
    worker = cluster(tmp_path / "other", task="worker")
    waits: list[float] = []
    hook = make_hook(worker, 3, 7)

    def sleep(wall_s: float) -> None:
        waits.append(wall_s)
        chief_s = tmp_path.glob("model.ckpt-3.*")
        for path in [*chief_s, tmp_path / "checkpoint"]:
            shutil.copy(path, worker.model_dir)

    monkeypatch.setattr("cerebras_tensorflow.estimator.training.early_stopping.time.sleep", sleep)
    worker.train(input_fn(), [hook], steps=50)
    assert waits == [7]


def test_workers_start_one_after_another(monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = {"chief": ["a:1"], "worker": ["b:2"] * 30}
    delays = {}
    for index in (0, 1, 20):
        set_task(monkeypatch, jobs, "worker", index)
        delays[index] = worker_delay_s(run_settings(RunConfig()))
        assert worker_delay_s(run_settings(RunConfig(experimental_max_worker_delay_secs=3))) == 3
    assert delays == {0: 5, 1: 10, 20: 60}
    set_task(monkeypatch, jobs, "chief")
    assert worker_delay_s(run_settings(RunConfig())) == 0


def test_each_process_is_warned_once_if_its_server_is_open(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    started: list[Any] = []

    class Server:
        def __init__(self, *_: object, **settings: Any) -> None:
            started.append(settings)

        def start(self) -> None:
            pass

    servers._warn_of_exposure.cache_clear()
    monkeypatch.setattr(tf.distribute, "Server", Server)
    set_task(monkeypatch, {"chief": ["127.0.0.1:1"], "ps": ["203.0.113.1:2"]}, "chief")
    with caplog.at_level(logging.WARNING, "tensorflow"):
        servers.start_server(run_settings(RunConfig(protocol="grpc")))
        servers.start_server(run_settings(RunConfig()))
    assert caplog.text.count("It is open to everybody who reaches its port: this machine cannot keep others away") == 1
    assert (started[0]["job_name"], started[0]["task_index"], started[0]["protocol"]) == ("chief", 0, "grpc")


ATTACK = """
import encodings.idna, socket, sys  # not readable as another user

def attack():
    for host in ("127.0.0.1", socket.gethostname()):
        try:
            with socket.create_connection((host, int(sys.argv[1])), timeout=2.5):
                print("in")
        except OSError as error:
            print(type(error).__name__)
"""


@pytest.mark.parametrize(
    "other, told", [("localhost:2", ""), ("203.0.113.1:2", "It is open to everybody on the machines in TF_CONFIG")]
)
def test_other_users_of_this_machine_cannot_reach_the_server_of_a_task(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    as_nobody: Callable[..., Any],
    other: str,
    told: str,
) -> None:
    address = free_address()
    set_task(monkeypatch, {"master": [address], "ps": [other]}, "master")
    servers._warn_of_exposure.cache_clear()
    with caplog.at_level(logging.WARNING, "tensorflow"):
        server = servers.start_server(run_settings(RunConfig()))
    assert told in caplog.text
    assert ("has no authentication" in caplog.text) == bool(told)
    attack = as_nobody(ATTACK, address.rpartition(":")[2])
    config = v1.ConfigProto(device_filters=["/job:master"])  # the other task does not exist
    with tf.Graph().as_default(), v1.Session(f"grpc://{address}", config=config) as session:
        assert session.run(tf.constant(3) + 4) == 7
    output, errors = attack.communicate(timeout=60)
    assert output.split() == ["TimeoutError"] * 2, errors
    assert server.target


def test_train_and_evaluate_gives_each_role_its_part(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    done: list[str] = []

    class Server:
        def join(self) -> None:
            done.append("join")

    def started(settings: Any) -> Server:
        done.append("server")
        return Server()

    monkeypatch.setattr("cerebras_tensorflow.estimator.distributed.tasks.start_server", started)
    monkeypatch.setattr(time, "sleep", lambda wall_s: done.append(f"wait {wall_s}"))
    monkeypatch.setattr(Estimator, "train", lambda *_, **settings: done.append("train"))
    jobs = {"chief": ["a:1"], "worker": ["b:2"], "ps": ["c:3"]}
    parts = {}
    for kind in jobs:
        set_task(monkeypatch, jobs, kind)
        done.clear()
        assert (
            train_and_evaluate(Estimator(model_fn, str(tmp_path), RunConfig()), TrainSpec(input_fn(), 2), SPEC) is None
        )
        parts[kind] = list(done)
    assert parts == {
        "chief": ["server", "train"],
        "worker": ["server", "wait 5", "train"],
        "ps": ["server", "join"],
    }
