"""What an EstimatorSpec accepts and refuses."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import tensorflow as tf

from cerebras_tensorflow import CSEstimatorSpec, EstimatorSpec

v1 = tf.compat.v1


@pytest.fixture(autouse=True)
def graph() -> Iterator[tf.Graph]:
    with tf.Graph().as_default() as graph:
        yield graph


def metrics_of(value: Any) -> Any:
    return {"mean": v1.metrics.mean(value)}


@pytest.mark.parametrize(
    "fields, text",
    [
        ({"mode": "train"}, "Missing train_op."),
        ({"mode": "eval"}, "Missing loss."),
        ({"mode": "infer"}, "Missing predictions."),
    ],
)
def test_a_spec_needs_the_fields_of_its_mode(fields: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        EstimatorSpec(**fields)


def test_a_training_spec_needs_a_loss() -> None:
    with pytest.raises(ValueError, match="Missing loss"):
        EstimatorSpec("train", train_op=tf.no_op())


def test_a_loss_of_shape_1_becomes_a_scalar_and_a_vector_is_refused() -> None:
    assert EstimatorSpec("eval", loss=tf.constant([2.0])).loss.shape.rank == 0
    with pytest.raises(ValueError, match="Loss must be scalar"):
        EstimatorSpec("eval", loss=tf.constant([1.0, 2.0]))


@pytest.mark.parametrize(
    "fields, text",
    [
        ({"train_op": "minimize"}, "train_op must be Operation or Tensor, given: minimize"),
        ({"predictions": {"y": 3}}, r"predictions\[y\] must be Tensor, given: 3"),
        ({"eval_metric_ops": ["accuracy"]}, "eval_metric_ops must be a dict"),
        ({"eval_metric_ops": {"a": 1}}, r"\(metric_value, update_op\) tuples, given: 1 for key: a"),
        ({"training_hooks": ["stop"]}, "given: stop in training_hooks"),
        ({"scaffold": 7}, "scaffold must be tf.train.Scaffold. Given: 7"),
    ],
)
def test_values_of_the_wrong_type_are_refused(fields: dict[str, Any], text: str) -> None:
    with pytest.raises(TypeError, match=text):
        EstimatorSpec("eval", loss=tf.constant(1.0), **fields)


def test_host_call_and_eval_metric_ops_exclude_each_other() -> None:
    value = tf.constant([1.0])
    host_call = (metrics_of, [value])
    assert CSEstimatorSpec("eval", loss=tf.constant(1.0), host_call=host_call).host_call == host_call
    with pytest.raises(ValueError, match=r"Please specify only one of `host_call` or `eval_metric_ops`, not both\."):
        CSEstimatorSpec("eval", loss=tf.constant(1.0), host_call=host_call, eval_metric_ops=metrics_of(value))


def test_replace_keeps_the_other_fields_and_host_call() -> None:
    host_call = (metrics_of, [tf.constant([1.0])])
    other = tf.constant(2.0)
    spec = CSEstimatorSpec("eval", loss=tf.constant(1.0), host_call=host_call)._replace(loss=other)
    assert isinstance(spec, CSEstimatorSpec)
    assert spec.loss is other and spec.host_call == host_call


def test_host_call_of_a_spec_is_none_by_default() -> None:
    assert CSEstimatorSpec("eval", loss=tf.constant(1.0)).host_call is None
