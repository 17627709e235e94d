"""Labels of -1 give no loss and no gradient; all others keep their bits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from cerebras_tensorflow.estimator.config.run_config import CSRunConfig
from cerebras_tensorflow.estimator.estimator import CerebrasEstimator
from cerebras_tensorflow.estimator.model.negative_labels import ignore_negative_labels
from cerebras_tensorflow.estimator.spec import CSEstimatorSpec
from cerebras_tensorflow.estimator.tf_estimator import Estimator

LOGITS = np.random.RandomState(0).randn(6, 5).astype(np.float32)


def results(labels: list[int], dtype: Any, kind: Any, ignoring: bool, whole_gradient: bool = False) -> list[np.ndarray]:
    """Losses and the gradient of their weighted sum, with or without the change."""
    with tf.Graph().as_default() as graph:
        logits = tf.constant(LOGITS.astype(dtype))
        given = tf.constant(labels, kind)
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=given, logits=logits)
        (gradient,) = tf.compat.v1.gradients(tf.reduce_sum(losses * tf.constant(np.arange(1, 7, dtype=dtype))), logits)
        names = [losses.name, gradient.name]
        if whole_gradient:
            op = next(op for op in graph.get_operations() if op.type == "SparseSoftmaxCrossEntropyWithLogits")
            names.append(tf.identity(op.outputs[1]).name)
        graph_def = graph.as_graph_def()
    with tf.Graph().as_default() as graph, tf.compat.v1.Session() as session:
        tf.graph_util.import_graph_def(ignore_negative_labels(graph_def) if ignoring else graph_def, name="")
        return session.run(names)


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("kind", [tf.int32, tf.int64])
def test_other_labels_keep_every_bit(dtype: Any, kind: Any) -> None:
    labels = [0, 1, 2, 3, 4, 0]
    for ours, original in zip(results(labels, dtype, kind, True), results(labels, dtype, kind, False), strict=True):
        np.testing.assert_array_equal(ours, original)


@pytest.mark.parametrize("whole_gradient", [False, True])
def test_negative_labels_give_no_loss_and_no_gradient(whole_gradient: bool) -> None:
    ours = results([0, -1, 2, -1, 4, 0], np.float32, tf.int32, True, whole_gradient)
    original = results([0, 0, 2, 0, 4, 0], np.float32, tf.int32, False, whole_gradient)
    kept = np.array([True, False, True, False, True, True])
    for one, other in zip(ours, original, strict=True):
        np.testing.assert_array_equal(one[kept], other[kept])
        assert not one[~kept].any()


def test_a_graph_without_the_op_stays_as_it_is() -> None:
    with tf.Graph().as_default() as graph:
        tf.nn.softmax_cross_entropy_with_logits(labels=tf.ones([2, 3]), logits=tf.ones([2, 3]))
        graph_def = graph.as_graph_def()
    assert ignore_negative_labels(graph_def) is graph_def


def model_fn(features: Any, labels: Any, mode: str, params: Any) -> Any:
    table = tf.compat.v1.get_variable("w", [4, 300], initializer=tf.compat.v1.ones_initializer())
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=tf.matmul(features, table))
    loss = tf.reduce_sum(losses)
    step = tf.compat.v1.train.get_or_create_global_step()
    return CSEstimatorSpec(
        mode, loss=loss, train_op=tf.compat.v1.train.GradientDescentOptimizer(0.1).minimize(loss, step)
    )


def batches(label: int) -> Any:
    """Two rows, of which the second has a given label."""
    x = np.array([[1, 2, 3, 4], [4, 3, 2, 1]], np.float32)
    return lambda: tf.data.Dataset.from_tensors((x, np.array([1, label], np.int32))).repeat()


@pytest.mark.parametrize("mode", ["pipelined", "weight_streaming"])
def test_training_equals_training_without_the_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str) -> None:
    monkeypatch.setenv("CEREBRAS_EXECUTION_MODE", mode)
    monkeypatch.setenv("CEREBRAS_HOME", str(tmp_path / "home"))
    config = CSRunConfig(save_checkpoints_steps=None, save_checkpoints_secs=None)
    with_row = CerebrasEstimator(model_fn, str(tmp_path / "a"), config=config)
    with_row.train(batches(-1), max_steps=3)

    def alone() -> Any:
        return batches(1)().map(lambda x, y: (x[:1], y[:1]))

    without = CerebrasEstimator(model_fn, str(tmp_path / "b"), config=config)
    without.train(alone, max_steps=3)
    np.testing.assert_array_equal(with_row.get_variable_value("w"), without.get_variable_value("w"))
    assert with_row.evaluate(batches(-1), steps=1)["loss"] == without.evaluate(alone, steps=1)["loss"]


def test_tf_estimator_refuses_negative_labels(tmp_path: Path) -> None:
    with pytest.raises(tf.errors.InvalidArgumentError, match="outside the valid range"):
        Estimator(model_fn, str(tmp_path)).train(batches(-1), max_steps=1)
