"""Updates made of assigns run in slices with the bits of the pipelined run; only what must be is kept whole."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import tensorflow as tf

from cerebras_tensorflow.graph.program import SLICE_LOAD_TOKEN, SLICE_STORE_TOKEN, Program
from reference_implementations.common.optimizers.adamw import AdamWOptimizer
from tests.unit.compiler.small_graphs import (
    EVERYTHING_SPILLED,
    WIDTH,
    Outcome,
    Small,
    build,
    run_small,
    v1,
    weight,
)

ROWS_OF_WEIGHT = 64  # so that slices end at whole SIMD packets
SLICE_BYTES = 16 * WIDTH * 4


def sliced_weights(program: Program) -> set[str]:
    """Names of the weights whose rows the program stores one slice at a time."""
    return {
        program.streamed[event.weight].name
        for event in program.events
        if event.kind in ("update", "replace") and "/cs_rows_" in event.node
    }


def calls(program: Program, token: str) -> int:
    return sum(node.op == "PyFunc" and node.attr["token"].s == token.encode() for node in program.graph_def.node)


def wide_loss(x: Any) -> Any:
    """A loss of two weights of 64 rows."""
    hidden = tf.tanh(tf.matmul(x, weight("w", (WIDTH, ROWS_OF_WEIGHT))))
    hidden = tf.tanh(tf.matmul(hidden, weight("u", (ROWS_OF_WEIGHT, WIDTH))))
    return tf.reduce_mean(tf.square(tf.matmul(hidden, weight("u_2", (WIDTH, ROWS_OF_WEIGHT)), name="out")))


def run_sliced(small: Small, steps: int = 5) -> Outcome:
    """Run a graph in both modes, streaming with and without spilling; return the run without."""
    pipelined = run_small(small, "pipelined", steps)
    first = None
    for options in ({}, EVERYTHING_SPILLED):
        streamed = run_small(small, "weight_streaming", steps, slice_bytes=SLICE_BYTES, **options)
        assert streamed.bits() == pipelined.bits(), options
        first = first or streamed
    assert first is not None
    return first


def adamw(loss: Any, step: Any) -> Any:
    return AdamWOptimizer(0.01, weight_decay_rate=0.1).minimize(loss, step)


def clipped_adamw(loss: Any, step: Any) -> Any:
    optimizer = AdamWOptimizer(0.01, weight_decay_rate=0.1)
    gradients, variables = zip(*optimizer.compute_gradients(loss), strict=True)
    clipped, _ = tf.clip_by_global_norm(gradients, 0.05)
    return optimizer.apply_gradients(zip(clipped, variables, strict=True), step)


def skipped_adamw(loss: Any, step: Any) -> Any:
    """Skips every other step in a branch, as dynamic loss scaling does."""
    optimizer = AdamWOptimizer(0.01, weight_decay_rate=0.1)
    pairs = optimizer.compute_gradients(loss)
    count = v1.assign_add(step, 1, use_locking=True)
    with tf.control_dependencies([count]):
        is_taken = tf.equal(tf.math.floormod(step, 2), 0)
    return tf.group(count, v1.cond(is_taken, lambda: optimizer.apply_gradients(pairs), tf.no_op))


@pytest.mark.parametrize("optimize", [adamw, clipped_adamw, skipped_adamw], ids=lambda function: function.__name__)
def test_adamw_is_sliced_and_agrees_in_every_bit(optimize: Callable[[Any, Any], Any]) -> None:
    def model(x: Any, step: Any) -> tuple[Any, Any]:
        loss = wide_loss(x)
        return loss, optimize(loss, step)

    result = run_sliced(build(model))
    assert {"u", "u/AdamW", "u/AdamW_1"} <= sliced_weights(result.program)
    # Each slice loads and stores the weight and its two slots once.
    assert calls(result.program, SLICE_LOAD_TOKEN) == calls(result.program, SLICE_STORE_TOKEN)
    assert not [node.name for node in result.program.graph_def.node if node.name.startswith("u/cs_update")]


def test_lamb_slices_the_weight_although_the_trust_ratio_needs_the_whole_change() -> None:
    def model(x: Any, step: Any) -> tuple[Any, Any]:
        loss = wide_loss(x)
        optimizer = AdamWOptimizer(0.01, weight_decay_rate=0.1, use_trust_ratio=True, name="LAMB")
        return loss, optimizer.minimize(loss, step)

    sliced = sliced_weights(run_sliced(build(model)).program)
    assert "u" in sliced
    assert "u/LAMB" not in sliced


def test_an_average_of_a_weight_that_reads_the_updated_weight_is_left_whole() -> None:
    def model(x: Any, step: Any) -> tuple[Any, Any]:
        loss = wide_loss(x)
        u = next(variable for variable in v1.trainable_variables() if variable.op.name == "u")
        average = v1.get_variable("average", initializer=tf.zeros(u.shape), trainable=False)
        with tf.control_dependencies([adamw(loss, step)]):
            return loss, average.assign_sub(0.1 * (average - u.read_value()), read_value=False)

    result = run_sliced(build(model))
    assert "u" not in sliced_weights(result.program)


def test_an_op_that_a_run_may_fetch_is_kept_whole() -> None:
    """The change of a weight is what the run fetches."""

    def model(x: Any, step: Any) -> tuple[Any, Any]:
        u = weight("u", (WIDTH, ROWS_OF_WEIGHT))
        gradient = tf.gradients(tf.reduce_sum(tf.tanh(tf.matmul(x, u))), u)[0]
        change = tf.square(gradient) * 0.1
        return change, tf.group(u.assign_sub(change * 2.0, read_value=False), v1.assign_add(step, 1))

    small = build(model)
    result = run_sliced(small)
    assert sliced_weights(result.program) == {"u"}
    assert result.outputs[0].shape == (WIDTH, ROWS_OF_WEIGHT)
