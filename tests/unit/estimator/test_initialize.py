"""Initial values are the same bits whether they are made in the session or read out one after the other."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from cerebras_tensorflow import CSEstimatorSpec, CSRunConfig
from cerebras_tensorflow.compiler.options import StreamingOptions
from cerebras_tensorflow.compiler.step import compile_step
from cerebras_tensorflow.estimator.initialize import initial_values, initialize
from cerebras_tensorflow.estimator.inputs import InputPipeline
from cerebras_tensorflow.estimator.model_call import Model, call_model_fn
from cerebras_tensorflow.runtime.session import ProgramSession
from tests.unit.estimator.tiny import input_fn

v1 = tf.compat.v1
VALUES = {"drawn", "shared", "other", "plain", "global_step"}


def model_fn(features: Any, labels: Any, mode: str, params: Any) -> Any:
    common = tf.random.normal([3, 4], seed=5)
    made = [
        v1.get_variable("drawn", [3, 4], initializer=v1.truncated_normal_initializer(seed=3)),
        v1.get_variable("shared", initializer=common),
        v1.get_variable("other", initializer=common),
        v1.get_variable("plain", initializer=tf.constant(2.0)),
    ]
    if params.get("reads"):
        drawn = made[0]
        value = tf.cond(drawn.is_initialized(), drawn.read_value, lambda: drawn.initial_value)
        made.append(v1.get_variable("from_another", initializer=value * 2))
    loss = tf.add_n([tf.reduce_sum(variable) for variable in made]) + tf.reduce_mean(features["x"])
    train_op = v1.train.GradientDescentOptimizer(0.1).minimize(loss, v1.train.get_global_step())
    return CSEstimatorSpec(mode, loss=loss, train_op=train_op)


def model(params: dict[str, Any]) -> Model:
    config = CSRunConfig(tf_random_seed=7)
    pipeline = InputPipeline(input_fn(), params, "train", config, 7)
    return call_model_fn(model_fn, pipeline, "train", params, config)


def session_of(made: Model) -> ProgramSession:
    step = made.step([made.spec.loss])
    return ProgramSession(compile_step(step, "pipelined", StreamingOptions()), made.graph, made.train_node)


@pytest.mark.parametrize("params", [{}, {"reads": True}], ids=["independent", "one reads another"])
def test_values_made_in_the_session_are_those_of_the_initializers(params: dict[str, Any]) -> None:
    made = model(params)
    session = session_of(made)
    initialize(session, made, None)
    expected = dict(initial_values(made, None))
    assert set(expected) == VALUES | ({"from_another"} if params else set())
    for name, value in expected.items():
        np.testing.assert_array_equal(session.read(name), value, err_msg=name)
    assert session.global_step == 0
    session.close()
