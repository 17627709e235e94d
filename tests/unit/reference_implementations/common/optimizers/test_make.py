"""One training step against the formulas in NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from reference_implementations.common.optimizers.make import training_step
from reference_implementations.common.sections import OptimizerSettings

START = np.array([1.0, -2.0, 3.0], np.float32)
TARGET = np.array([0.0, 1.0, 1.0], np.float32)


def train(settings: OptimizerSettings, steps: int) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Minimize half the squared distance to TARGET: the gradient is the distance."""
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        weight = tf.compat.v1.get_variable("layer/kernel", initializer=START, use_resource=True)
        step = training_step(0.5 * tf.reduce_sum(tf.square(weight - TARGET)), settings)
        session.run(tf.compat.v1.global_variables_initializer())
        for _ in range(steps):
            session.run(step)
        others = {variable.op.name: session.run(variable) for variable in tf.compat.v1.global_variables()}
        return others.pop("layer/kernel"), others


def adamw_by_hand(steps: int, rate: float, decay: float, correct: bool) -> np.ndarray:
    weight, m, v = START.astype(np.float64), np.zeros(3), np.zeros(3)
    for number in range(1, steps + 1):
        gradient = weight - TARGET
        m = 0.9 * m + 0.1 * gradient
        v = 0.99 * v + 0.01 * gradient**2
        scale = np.sqrt(1 - 0.99**number) / (1 - 0.9**number) if correct else 1.0
        weight = weight - rate * (scale * m / (np.sqrt(v) + 1e-8) + decay * weight)
    return weight


@pytest.mark.parametrize("correct", [True, False])
@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_adamw_follows_its_formula(correct: bool, decay: float) -> None:
    settings = OptimizerSettings(
        optimizer_type="adamw", learning_rate=0.1, beta2=0.99, weight_decay_rate=decay, use_bias_correction=correct
    )
    weight, others = train(settings, 5)
    np.testing.assert_allclose(weight, adamw_by_hand(5, 0.1, decay, correct), rtol=1e-5)
    powers = {"beta1_power", "beta2_power"} if correct else set()
    assert set(others) == {"global_step", "layer/kernel/AdamW", "layer/kernel/AdamW_1"} | powers
    assert others["global_step"] == 5


def test_excluded_names_are_not_decayed() -> None:
    common: dict[str, Any] = {"optimizer_type": "adamw", "learning_rate": 0.1, "beta2": 0.99, "weight_decay_rate": 0.5}
    weight, _ = train(OptimizerSettings(**common, exclude_from_weight_decay=("kernel",)), 3)
    np.testing.assert_allclose(weight, adamw_by_hand(3, 0.1, 0.0, True), rtol=1e-5)


def test_the_gradient_is_clipped_to_a_global_norm() -> None:
    weight, _ = train(OptimizerSettings(optimizer_type="sgd", learning_rate=1.0, max_gradient_norm=0.5), 1)
    gradient = START - TARGET
    np.testing.assert_allclose(weight, START - 0.5 * gradient / np.linalg.norm(gradient), rtol=1e-6)


def test_the_gradient_is_clipped_to_a_value() -> None:
    weight, _ = train(OptimizerSettings(optimizer_type="sgd", learning_rate=1.0, max_gradient_value=1.5), 1)
    np.testing.assert_allclose(weight, START - np.clip(START - TARGET, -1.5, 1.5), rtol=1e-6)


@pytest.mark.parametrize("kind", ["sgd", "momentum", "adam", "adamw", "lamb", "adafactor"])
def test_every_optimizer_approaches_the_target(kind: Any) -> None:
    weight, others = train(OptimizerSettings(optimizer_type=kind, learning_rate=0.05), 10)
    assert np.all(np.abs(weight - TARGET) < np.abs(START - TARGET))
    assert others["global_step"] == 10


def test_an_unused_row_still_decays() -> None:
    settings = OptimizerSettings(optimizer_type="adamw", learning_rate=0.1, weight_decay_rate=0.5)
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        table = tf.compat.v1.get_variable("table", initializer=np.ones([4, 2], np.float32), use_resource=True)
        step = training_step(tf.reduce_sum(tf.gather(table, [1, 1])), settings)
        session.run(tf.compat.v1.global_variables_initializer())
        session.run(step)
        values = session.run(table)
    np.testing.assert_allclose(values[[0, 2, 3]], 0.95, rtol=1e-6)
    np.testing.assert_allclose(values[1], 0.85, rtol=1e-5)


def test_lamb_scales_each_change_to_the_length_of_its_variable() -> None:
    settings = OptimizerSettings(optimizer_type="lamb", learning_rate=0.1, beta2=0.99, weight_decay_rate=0.2)
    weight, others = train(settings, 1)
    # In the first step the corrected moments are the gradient and its square, so their quotient is the sign.
    change = np.sign(START - TARGET) + 0.2 * START
    ratio = np.linalg.norm(START) / np.linalg.norm(change)
    np.testing.assert_allclose(weight, START - 0.1 * ratio * change, rtol=1e-5)
    assert {"layer/kernel/LAMB", "layer/kernel/LAMB_1"} < set(others)


def test_adafactor_follows_its_formula_on_a_vector_and_a_matrix() -> None:
    rng = np.random.default_rng(3)
    start = {"matrix": rng.normal(size=[3, 5]), "vector": rng.normal(size=[4])}
    start["matrix"][1] = 0.0  # a row without gradient, whose mean square is next to nothing
    start["matrix"][:, 2] = 0.0
    start = {name: value.astype(np.float32) for name, value in start.items()}
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        variables = [tf.compat.v1.get_variable(name, initializer=start[name], use_resource=True) for name in start]
        loss = sum(0.5 * tf.reduce_sum(tf.square(variable)) for variable in variables)
        step = training_step(loss, OptimizerSettings(optimizer_type="adafactor", learning_rate=0.01))
        session.run(tf.compat.v1.global_variables_initializer())
        for _ in range(4):
            session.run(step)
        weights = dict(zip(start, session.run(variables), strict=True))
        slots = {item.op.name: item.shape.as_list() for item in tf.compat.v1.global_variables() if "/" in item.op.name}
    assert slots == {"matrix/Adafactor": [3], "matrix/Adafactor_1": [5], "vector/Adafactor": [4]}

    rows, columns, v = np.zeros(3), np.zeros(5), np.zeros(4)
    expected = {name: value.astype(np.float64) for name, value in start.items()}
    for number in range(1, 5):
        decay = 1 - number**-0.8
        square = expected["matrix"] ** 2 + 1e-30  # the gradient of half the squares is the weight
        rows = decay * rows + (1 - decay) * square.mean(axis=1)
        columns = decay * columns + (1 - decay) * square.mean(axis=0)
        v = decay * v + (1 - decay) * (expected["vector"] ** 2 + 1e-30)
        moments = {"matrix": np.outer(rows, columns) / rows.mean(), "vector": v}
        for name, weight in expected.items():
            change = weight / np.sqrt(moments[name])
            change /= max(1.0, np.sqrt((change**2).mean()))
            expected[name] = weight - 0.01 * max(1e-3, np.sqrt((weight**2).mean())) * change
    for name, weight in expected.items():
        np.testing.assert_allclose(weights[name], weight, rtol=1e-5)


def test_accumulated_gradients_make_one_update_of_their_mean() -> None:
    settings = OptimizerSettings(optimizer_type="sgd", learning_rate=1.0, grad_accum_steps=3)
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        weight = tf.compat.v1.get_variable("w", initializer=START, use_resource=True)
        slope = tf.compat.v1.placeholder(tf.float32, [])
        step = training_step(tf.reduce_sum(weight) * slope, settings)
        session.run(tf.compat.v1.global_variables_initializer())
        after_each_step = []
        for value in (1.0, 2.0, 6.0, 30.0):
            session.run(step, {slope: value})
            after_each_step.append(session.run(weight)[0])
        others = {variable.op.name: session.run(variable) for variable in tf.compat.v1.global_variables()}
    assert after_each_step == [START[0], START[0], START[0] - 3.0, START[0] - 3.0]
    assert (others["global_step"], others["accum_step_counter"]) == (1, 1)
    np.testing.assert_array_equal(others["w_grad_accum_0"], [30.0, 30.0, 30.0])


@pytest.mark.parametrize("factor", [64.0, "dynamic"])
def test_scaling_the_loss_does_not_change_the_update(factor: Any) -> None:
    common: dict[str, Any] = {"optimizer_type": "adamw", "learning_rate": 0.1, "beta2": 0.99}
    weight, _ = train(OptimizerSettings(**common, loss_scaling_factor=factor), 3)
    np.testing.assert_allclose(weight, adamw_by_hand(3, 0.1, 0.0, True), rtol=1e-5)


def test_the_loss_scale_follows_overflows_within_its_tolerance() -> None:
    settings = OptimizerSettings(
        optimizer_type="sgd", learning_rate=0.0, loss_scaling_factor="dynamic", overflow_tolerance=0.4,
        initial_loss_scale=8.0, steps_per_increase=3,
    )  # fmt: skip
    scales = []
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        weight = tf.compat.v1.get_variable("w", initializer=START, use_resource=True)
        slope = tf.compat.v1.placeholder(tf.float32, [])
        step = training_step(tf.reduce_sum(weight) * slope, settings)
        scale = next(item for item in tf.compat.v1.global_variables() if item.op.name == "current_loss_scale")
        session.run(tf.compat.v1.global_variables_initializer())
        for value in (1.0, 1.0, np.inf, np.inf, 1.0, 1.0, 1.0):
            session.run(step, {slope: value})
            scales.append(float(session.run(scale)))
        assert session.run(tf.compat.v1.train.get_global_step()) == 7
    # One overflow in three steps is tolerated, two in four are not; then three good steps in a row.
    assert scales == [8.0, 8.0, 8.0, 4.0, 4.0, 4.0, 8.0]
