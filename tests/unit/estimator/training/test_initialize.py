"""Initial values have the same bits whether they are made in the session or one after the other."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from cerebras_tensorflow import CSEstimatorSpec, CSRunConfig
from cerebras_tensorflow.compiler.options import StreamingOptions
from cerebras_tensorflow.compiler.step import compile_step
from cerebras_tensorflow.estimator.config.run_settings import run_settings
from cerebras_tensorflow.estimator.model.inputs import InputPipeline
from cerebras_tensorflow.estimator.model.model_call import Model, call_model_fn
from cerebras_tensorflow.estimator.training.initialize import initial_rows, initial_values, initialize
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
    settings = run_settings(CSRunConfig(tf_random_seed=7))
    pipeline = InputPipeline(input_fn(), params, "train", settings)
    return call_model_fn(model_fn, pipeline, "train", params, settings)


def session_of(made: Model) -> ProgramSession:
    step = made.step([made.spec.loss])
    return ProgramSession(compile_step(step, "pipelined", StreamingOptions()), made.graph, made.train_node)


@pytest.mark.parametrize("params", [{}, {"reads": True}], ids=["independent", "one reads another"])
def test_values_made_in_the_session_equal_those_of_the_initializers(params: dict[str, Any]) -> None:
    made = model(params)
    session = session_of(made)
    initialize(session, made, None)
    expected = dict(initial_values(made, None))
    assert set(expected) == VALUES | ({"from_another"} if params else set())
    for name, value in expected.items():
        np.testing.assert_array_equal(session.read(name), value, err_msg=name)
    assert session.global_step == 0
    session.close()


def large_model_fn(features: Any, labels: Any, mode: str, params: Any) -> Any:
    """Variables of several slices each, one for each kind of initializer."""
    shape = [320, 40]
    initializers = {
        "uniform": v1.random_uniform_initializer(-2.0, 3.0, seed=3),
        "normal": v1.random_normal_initializer(1.0, 0.5, seed=3),
        "unseeded_truncated": v1.truncated_normal_initializer(stddev=0.1),
        "glorot": v1.glorot_uniform_initializer(seed=9),
        "zeros": v1.zeros_initializer(),
        "given": v1.constant_initializer(np.arange(320 * 40).reshape(shape)),
        "orthogonal": v1.orthogonal_initializer(seed=1),
    }
    made = [v1.get_variable(name, shape, initializer=initializer) for name, initializer in initializers.items()]
    made += [v1.get_variable(f"wide_{name}", shape, tf.float64, initializers[name]) for name in initializers]
    made.append(v1.get_variable("half", shape, tf.bfloat16, v1.random_normal_initializer(seed=3, dtype=tf.bfloat16)))
    loss = tf.add_n([tf.cast(tf.reduce_sum(variable), tf.float32) for variable in made]) + tf.reduce_mean(features["x"])
    return CSEstimatorSpec(mode, loss=loss, train_op=v1.assign_add(v1.train.get_global_step(), 1).op)


def test_values_made_in_slices_equal_those_made_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cerebras_tensorflow.estimator.training.initialize._SLICE_BYTES", 6000)
    monkeypatch.setattr("secrets.randbits", lambda _: 12345)  # both draw alike without a seed, too
    settings = run_settings(CSRunConfig(tf_random_seed=7))
    made = call_model_fn(large_model_fn, InputPipeline(input_fn(), {}, "train", settings), "train", {}, settings)
    whole = dict(initial_values(made, None))
    in_slices = set()
    for name, dtype, shape, value in initial_rows(made, None):
        if not isinstance(value, np.ndarray):
            pieces = list(value)
            in_slices.add(name)
            assert len(pieces) > 2
            value = np.concatenate(pieces).view(dtype).reshape(shape)
        assert value.dtype == whole[name].dtype
        np.testing.assert_array_equal(value, whole[name], err_msg=name)
    assert set(whole) - in_slices == {"global_step", "orthogonal", "wide_orthogonal"}
