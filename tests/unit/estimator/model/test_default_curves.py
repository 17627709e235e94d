"""The learning rate and the loss scale of any model are curves of its run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import tensorflow as tf
import tf_keras

from cerebras_tensorflow.estimator.model.default_curves import add_default_curves

v1 = tf.compat.v1


def decayed_adam(weight: Any, loss: Any) -> Any:
    step = v1.train.get_or_create_global_step()
    return v1.train.AdamOptimizer(v1.train.exponential_decay(0.5, step, 1, 0.5)).minimize(loss, step, [weight])


def keras_sgd(weight: Any, loss: Any) -> Any:
    return tf_keras.optimizers.legacy.SGD(0.125, momentum=0.9).get_updates(loss, [weight])[0]


def two_rates(weight: Any, loss: Any) -> Any:
    other = v1.get_variable("other", [2])
    return tf.group(
        v1.train.FtrlOptimizer(0.25).minimize(loss, var_list=[weight]),
        v1.train.RMSPropOptimizer(0.75).minimize(tf.reduce_sum(other), var_list=[other]),
    )


def by_hand(weight: Any, loss: Any) -> Any:
    rate = v1.get_variable("lr", initializer=0.0625, trainable=False)
    return weight.assign_sub(tf.gradients(loss, weight)[0] * rate)


def shown_by_the_model(weight: Any, loss: Any) -> Any:
    v1.summary.scalar("Learning_Rate", 2.0)
    return v1.train.GradientDescentOptimizer(0.5).minimize(loss, var_list=[weight])


def scaled(weight: Any, loss: Any) -> Any:
    scale = v1.get_variable("current_loss_scale", initializer=1024.0, trainable=False)
    gradient = tf.gradients(loss * scale, weight)[0] / scale
    train = v1.train.GradientDescentOptimizer(0.5).apply_gradients([(gradient, weight)])
    with tf.control_dependencies([train]):
        return scale.assign(scale * 2)


def without_a_rate(weight: Any, loss: Any) -> Any:
    return weight.assign_sub(tf.gradients(loss, weight)[0])


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (decayed_adam, {"train/lr": 0.5}),
        (keras_sgd, {"train/lr": 0.125}),
        (two_rates, {"train/lr/0": 0.25, "train/lr/1": 0.75}),
        (by_hand, {"train/lr": 0.0625}),
        (shown_by_the_model, {"Learning_Rate": 2.0}),
        (scaled, {"train/lr": 0.5, "train/loss_scale": 1024.0}),
        (without_a_rate, {}),
    ],
)
def test_the_curves_of_a_train_op(make: Callable[[Any, Any], Any], expected: dict[str, float]) -> None:
    with tf.Graph().as_default() as graph:
        weight = v1.get_variable("w", [3], use_resource=True)
        train_op = make(weight, tf.reduce_sum(weight * weight))
        add_default_curves(graph, train_op)
        merged = v1.summary.merge_all()
        values: dict[str, float] = {}
        if merged is not None:
            with v1.Session() as session:
                session.run(v1.global_variables_initializer())
                summary = v1.Summary.FromString(session.run(merged))
                values = {value.tag: value.simple_value for value in summary.value}
    assert values == expected
