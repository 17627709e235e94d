"""Weight streaming gives the losses, weights and slots of the pipelined mode to the last bit."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

from tests.numerics.streaming import assert_same_bits, build, train, transformer_loss

v1 = tf.compat.v1


def adam(loss: Any, step: Any) -> Any:
    rate = v1.train.cosine_decay(1e-2, step, 100)
    return v1.train.AdamOptimizer(rate).minimize(loss, step)


def momentum(loss: Any, step: Any) -> Any:
    return v1.train.MomentumOptimizer(0.1, 0.9).minimize(loss, step)


def adafactor_like(loss: Any, step: Any) -> Any:
    return v1.train.RMSPropOptimizer(1e-3, momentum=0.5).minimize(loss, step)


def decoupled_decay(loss: Any, step: Any) -> Any:
    """AdamW from plain assigns, as model code writes it: reads of slots and weights inside the update."""
    updates = []
    for gradient, weight in zip(tf.gradients(loss, v1.trainable_variables()), v1.trainable_variables(), strict=True):
        gradient = tf.convert_to_tensor(gradient)
        name = weight.op.name
        m = v1.get_variable(f"{name}/m", weight.shape, initializer=v1.zeros_initializer(), trainable=False)
        v = v1.get_variable(f"{name}/v", weight.shape, initializer=v1.zeros_initializer(), trainable=False)
        next_m = 0.9 * m + 0.1 * gradient
        next_v = 0.99 * v + 0.01 * gradient * gradient
        change = next_m / (tf.sqrt(next_v) + 1e-6) + 0.01 * weight
        updates += [weight.assign_sub(1e-2 * change), m.assign(next_m), v.assign(next_v)]
    with tf.control_dependencies(updates):
        return step.assign_add(1)


def clipped(loss: Any, step: Any) -> Any:
    optimizer = v1.train.AdamOptimizer(1e-2)
    gradients, variables = zip(*optimizer.compute_gradients(loss), strict=True)
    gradients, _ = tf.clip_by_global_norm(gradients, 0.5)
    return optimizer.apply_gradients(zip(gradients, variables, strict=True), step)


def loss_scaled(loss: Any, step: Any) -> Any:
    """Dynamic loss scaling whose third step overflows and is skipped."""
    scale = v1.get_variable("loss_scale", [], initializer=v1.constant_initializer(2.0**10), trainable=False)
    attempts = v1.get_variable("attempts", [], tf.int64, v1.zeros_initializer(), trainable=False)
    optimizer = v1.train.AdamOptimizer(1e-2)
    overflow = tf.where(tf.equal(attempts, 2), float("inf"), 1.0)
    pairs = [(tf.convert_to_tensor(g) / scale, w) for g, w in optimizer.compute_gradients(loss * scale * overflow)]
    finite = tf.reduce_all([tf.reduce_all(tf.math.is_finite(g)) for g, _ in pairs])
    with tf.control_dependencies([finite]):
        counted = attempts.assign_add(1)
    apply = tf.cond(finite, lambda: optimizer.apply_gradients(pairs, step), lambda: tf.group(scale.assign(scale * 0.5)))
    return tf.group(apply, counted)


def accumulated(loss: Any, step: Any) -> Any:
    """Gradients of three runs are summed before one update."""
    optimizer = v1.train.AdamOptimizer(1e-2)
    runs = v1.get_variable("runs", [], tf.int64, v1.zeros_initializer(), trainable=False)
    pairs = optimizer.compute_gradients(loss)
    sums, totals = [], []
    for gradient, weight in pairs:
        total = v1.get_variable(
            f"{weight.op.name}/sum", weight.shape, initializer=v1.zeros_initializer(), trainable=False
        )
        totals.append(total)
        sums.append(total.assign_add(tf.convert_to_tensor(gradient)))

    def update() -> Any:
        with tf.control_dependencies([optimizer.apply_gradients(zip(sums, [w for _, w in pairs], strict=True), step)]):
            return tf.group([total.assign(tf.zeros_like(total)) for total in totals])

    with tf.control_dependencies(sums):
        count = runs.assign_add(1)
    return tf.cond(tf.equal(count % 3, 0), update, lambda: tf.group(tf.no_op()))


def old_slots_used(loss: Any, step: Any, scale: float = 1.0) -> Any:
    """Lion from plain assigns: the update of a weight takes the old value of a slot that changes too.

    With a scale, a product is shared by both updates, which are then one group.
    """
    updates = []
    gradients = tf.gradients(loss * scale, v1.trainable_variables())
    for gradient, weight in zip(gradients, v1.trainable_variables(), strict=True):
        gradient = tf.convert_to_tensor(gradient)
        gradient = gradient / scale if scale != 1 else gradient
        m = v1.get_variable(f"{weight.op.name}/m", weight.shape, initializer=v1.zeros_initializer(), trainable=False)
        change = tf.sign(0.9 * m + 0.1 * gradient) + 0.01 * weight
        updates += [weight.assign_sub(1e-3 * change), m.assign(0.99 * m + 0.01 * gradient)]
    with tf.control_dependencies(updates):
        return step.assign_add(1)


OPTIMIZERS: list[Callable[[Any, Any], Any]] = [
    adam, momentum, adafactor_like, decoupled_decay, clipped, loss_scaled, accumulated,
]  # fmt: skip


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=lambda function: function.__name__)
def test_fifty_steps_agree_in_every_bit(optimizer: Callable[[Any, Any], Any], tmp_path: Path) -> None:
    result = assert_same_bits(build(optimizer), tmp_path)
    streamed = {spec.name for spec in result.program.streamed}
    assert {"embedding", "layer_0/qkv", "layer_2/down"} <= streamed
    assert not result.program.notes
    assert len(result.program.spilled) > 10
    assert any("cs_again" in node.name for node in result.program.graph_def.node)


@pytest.mark.parametrize("window_bytes", [40_000, 131_072])
@pytest.mark.parametrize("scale", [1.0, 8.0])
def test_an_update_that_reads_the_old_slot_agrees_in_every_bit(scale: float, window_bytes: int, tmp_path: Path) -> None:
    assert_same_bits(build(partial(old_slots_used, scale=scale)), tmp_path, steps=6, window_bytes=window_bytes)


def test_mixed_precision_agrees_in_every_bit(tmp_path: Path) -> None:
    loss = partial(transformer_loss, dtype=tf.bfloat16)
    program = assert_same_bits(build(adam, loss), tmp_path).program
    loads = [event for event in program.events if event.kind == "load"]
    of_up = [event for event in loads if program.stored[event.weight].name == "layer_0/up"]
    assert len(of_up) == 2, "the cast weight does not wait for the backward pass"


@pytest.mark.parametrize("window_bytes", [1, 20_000, 10_000_000])
def test_the_window_changes_the_schedule_but_not_the_bits(window_bytes: int, tmp_path: Path) -> None:
    assert_same_bits(build(adam), tmp_path, steps=10, window_bytes=window_bytes)


def test_a_skipped_step_changes_no_weight_and_no_slot() -> None:
    built = build(loss_scaled)
    two, three = train(built, "weight_streaming", 2), train(built, "weight_streaming", 3)
    same = [name for name in two.variables if two.variables[name].tobytes() == three.variables[name].tobytes()]
    assert set(two.variables) - set(same) == {"loss_scale", "attempts"}


def test_dropout_differs_between_steps_and_repeats_between_runs() -> None:
    built = build(momentum)
    first, again = train(built, "weight_streaming", 4), train(built, "weight_streaming", 4)
    assert first.losses == again.losses
    assert len(set(first.losses)) == 4
