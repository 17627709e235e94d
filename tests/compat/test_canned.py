"""Canned estimators, heads and TPUEstimator run on our Estimator; differential/ compares their numbers with 2.15."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import cerebras_tensorflow
from cerebras_tensorflow.config import env

v1 = tf.compat.v1
X = np.linspace(-1, 1, 24).reshape(8, 3).astype(np.float32)
LABELS = (X.sum(1) > 0).astype(np.int64)
WORDS = np.array([3, 1, 4, 1, 5, 9, 2, 6])


def batches() -> Any:
    return tf.data.Dataset.from_tensor_slices(({"x": X, "word": WORDS}, LABELS)).batch(4).repeat(4)


def columns() -> list[Any]:
    words = tf.feature_column.categorical_column_with_identity("word", 20_000)
    return [tf.feature_column.numeric_column("x", (3,)), tf.feature_column.embedding_column(words, 8)]


@pytest.mark.parametrize("api", [v1.estimator, tf.estimator], ids=["v1", "v2"])
def test_a_dnn_classifier_trains_evaluates_and_predicts(tmp_path: Path, api: Any) -> None:
    estimator = api.DNNClassifier([4], columns(), str(tmp_path))
    assert isinstance(estimator, tf.estimator.Estimator)
    estimator.train(batches)
    assert set(estimator.evaluate(batches)) >= {"accuracy", "auc", "loss", "global_step"}
    assert len(list(estimator.predict(batches))) == 32


class Streamed(v1.train.SessionRunHook):
    """Keeps the names of the weights that a run streams."""

    def after_create_session(self, session: Any, coord: Any) -> None:
        self.names = {spec.name for spec in session.program.streamed}


@pytest.mark.parametrize("api", [v1.estimator, tf.estimator], ids=["v1", "v2"])
def test_a_canned_estimator_trains_to_the_same_weights_in_both_modes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, api: Any
) -> None:
    weights = {}
    for mode in (env.PIPELINED, env.WEIGHT_STREAMING):
        monkeypatch.setenv(env.EXECUTION_MODE, mode)
        config = tf.estimator.RunConfig(tf_random_seed=5)
        streamed = Streamed()
        estimator = api.DNNClassifier([4], columns(), str(tmp_path / mode), config=config)
        estimator.train(batches, hooks=[streamed])
        weights[mode] = {name: estimator.get_variable_value(name) for name in estimator.get_variable_names()}
    assert any("embedding" in name for name in streamed.names)
    # TensorFlow's Saver drops the partition: the v1 variable dnn/logits/kernel/part_0 is saved without part_0.
    assert {"dnn/hiddenlayer_0/kernel", "dnn/logits/kernel"} <= set(weights[env.PIPELINED])
    assert set(weights[env.PIPELINED]) == set(weights[env.WEIGHT_STREAMING])
    for name, value in weights[env.PIPELINED].items():
        np.testing.assert_array_equal(value, weights[env.WEIGHT_STREAMING][name], err_msg=name)


def tpu_model(features: Any, labels: Any, mode: str, params: Any) -> Any:
    predictions = v1.layers.dense(features["x"], 1, kernel_initializer=v1.zeros_initializer())
    size = tf.constant(params.get("batch_size", -1))
    if mode == "infer":
        rows = tf.fill([tf.shape(predictions)[0]], size)
        return v1.estimator.tpu.TPUEstimatorSpec(mode, predictions={"p": predictions, "size": rows})
    loss = tf.reduce_mean((predictions[:, 0] - tf.cast(labels, tf.float32)) ** 2)
    train_op = v1.train.GradientDescentOptimizer(0.1).minimize(loss, v1.train.get_global_step())

    def metrics(labels: Any, size: Any) -> Any:
        return {"labels": v1.metrics.mean(labels), "size": v1.metrics.mean(size)}

    return v1.estimator.tpu.TPUEstimatorSpec(
        mode, loss=loss, train_op=train_op, eval_metrics=(metrics, {"labels": labels, "size": size})
    )


def tpu_input(params: Any) -> Any:
    return tf.data.Dataset.from_tensor_slices(({"x": X}, LABELS)).batch(params["batch_size"])


@pytest.mark.filterwarnings("ignore:.tf.layers.dense. is deprecated:UserWarning")
def test_a_tpu_estimator_runs_without_a_tpu(tmp_path: Path) -> None:
    tpu = v1.estimator.tpu
    config = tpu.RunConfig(model_dir=str(tmp_path), tpu_config=tpu.TPUConfig(iterations_per_loop=2))
    estimator = tpu.TPUEstimator(
        tpu_model, config=config, use_tpu=False, train_batch_size=2, eval_batch_size=4, predict_batch_size=8
    )
    estimator.train(tpu_input)
    assert estimator.get_variable_value("global_step") == 4
    assert estimator.evaluate(tpu_input)["size"] == 4
    rows = list(estimator.predict(tpu_input))
    assert [row["size"] for row in rows] == [8] * 8
    assert estimator.config.replace(tpu_config=None, tf_random_seed=3).tpu_config is None


def test_use_tpu_is_refused_and_the_error_names_the_alternative() -> None:
    tpu = v1.estimator.tpu
    with pytest.raises(NotImplementedError, match="use_tpu=False"):
        tpu.TPUEstimator(tpu_model, config=tpu.RunConfig(), train_batch_size=2)


def test_variables_that_change_their_shape_train_resume_and_are_saved(tmp_path: Path) -> None:
    points = np.array([[0, 0], [0, 1], [10, 10], [10, 11]], np.float32)
    for repeats in (2, 3):  # the second run resumes
        estimator = v1.estimator.experimental.KMeans(
            2, str(tmp_path), initial_clusters=points[[0, 2]], use_mini_batch=False
        )
        estimator.train(lambda: tf.data.Dataset.from_tensors({"x": points}).repeat(repeats))  # noqa: B023 - called now
    assert estimator.get_variable_value("global_step") == 5
    np.testing.assert_allclose(estimator.cluster_centers(), [[0, 0.5], [10, 10.5]], atol=1e-4)


def test_kmeans_keeps_its_first_clusters_if_the_input_ends_in_the_first_step(tmp_path: Path) -> None:
    points = np.array([[0, 0], [0, 1], [10, 10], [10, 11]], np.float32)
    for _ in range(2):
        estimator = v1.estimator.experimental.KMeans(2, str(tmp_path), use_mini_batch=False, seed=3)
        estimator.train(lambda: v1.train.limit_epochs(tf.constant(points), num_epochs=1))
    np.testing.assert_allclose(sorted(estimator.cluster_centers().tolist()), [[0, 0.5], [10, 10.5]], atol=1e-4)


def test_a_saved_model_trains_on_as_an_estimator(tmp_path: Path) -> None:
    from tensorflow_estimator.python.estimator.canned.saved_model_estimator import SavedModelEstimator
    from tensorflow_estimator.python.estimator.export.export import build_supervised_input_receiver_fn_from_input_fn

    first = tf.estimator.LinearClassifier([tf.feature_column.numeric_column("x", (3,))], str(tmp_path / "first"))

    def labelled() -> Any:
        return tf.data.Dataset.from_tensor_slices(({"x": X}, LABELS[:, None])).batch(4).repeat()

    first.train(labelled, steps=3)
    receive = build_supervised_input_receiver_fn_from_input_fn(labelled)
    path = first.experimental_export_all_saved_models(str(tmp_path / "export"), {"train": receive, "eval": receive})
    again = SavedModelEstimator(path.decode(), str(tmp_path / "again")).train(labelled, steps=2)
    first.train(labelled, steps=2)
    assert again.get_variable_value("global_step") == 5
    for name in first.get_variable_names():
        np.testing.assert_array_equal(again.get_variable_value(name), first.get_variable_value(name))


def test_a_head_makes_an_estimator_spec_of_ours() -> None:
    with tf.Graph().as_default():
        logits = tf.zeros([2, 1])
        spec = tf.estimator.BinaryClassHead().create_estimator_spec({}, "infer", logits)
    assert isinstance(spec, tf.estimator.EstimatorSpec)


SCRIPT = """
import cerebras_tensorflow
import tensorflow.compat.v1 as tf
from tensorflow_estimator.python.estimator.canned import dnn, head as head_lib, metric_keys
from tensorflow_estimator.python.estimator import model_fn, run_config, estimator as estimator_lib
from tensorflow.python.estimator import run_config as old_run_config
from tensorflow.python.estimator.canned.head import _regression_head
import tensorflow.python.estimator.estimator
import tensorflow.python.training.tracking.util
from tensorflow.python.tpu import tpu_config, tpu_estimator
from tensorflow_estimator.python.estimator.tpu import _tpu_estimator_embedding, tpu_context
from tensorflow.python.training import training_ops
from tensorflow.python.training.tracking import base, graph_view
import tensorflow_estimator as wheel
assert issubclass(dnn.DNNClassifier, tf.estimator.Estimator)
assert tf.compat.v1.estimator.Estimator is tf.estimator.Estimator
assert old_run_config.RunConfig is tf.estimator.RunConfig is run_config.RunConfig
assert run_config.TaskType.CHIEF == "chief" and model_fn.LOSS_METRIC_KEY == "loss"
assert estimator_lib.maybe_overwrite_model_dir_and_session_config
assert head_lib._regression_head is _regression_head
assert tpu_estimator.TPUEstimator is tf.estimator.tpu.TPUEstimator
assert tpu_config.RunConfig is tf.estimator.tpu.RunConfig
assert tpu_context.TPUContext and _tpu_estimator_embedding.EmbeddingConfigSpec
try:
    _tpu_estimator_embedding.AdamParameters(0.1)
except NotImplementedError as error:
    assert "tpu_embedding.AdamParameters does not exist" in str(error)
else:
    raise AssertionError("AdamParameters of a dropped module was made")
assert training_ops.resource_apply_adam and base.Trackable and graph_view.ObjectGraphView
assert wheel.estimator.DNNClassifier is dnn.DNNClassifier
with tf.Graph().as_default():
    assert tf.layers.dense(tf.zeros([2, 3]), 1).shape == (2, 1)
    assert tf.nn.rnn_cell.LSTMCell(2).state_size
print("right")
"""


def test_names_of_tensorflow_1_resolve_in_any_import_order() -> None:
    root = str(Path(cerebras_tensorflow.__file__).parents[1])
    environ = {"PYTHONPATH": root, "TF_CPP_MIN_LOG_LEVEL": "3", "PATH": ""}
    words = [sys.executable, "-W", "ignore", "-c", SCRIPT]
    done = subprocess.run(words, env=environ, capture_output=True, text=True)
    assert done.stdout.endswith("right\n"), done.stderr[-3000:]
