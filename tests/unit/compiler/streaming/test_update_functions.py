"""Updates of streamed weights are calls of a shared function, with the bits of the pipelined run."""

from __future__ import annotations

from typing import Any

import pytest
import tensorflow as tf

from tests.unit.compiler.small_graphs import WIDTH, Outcome, Small, build, run_small, v1, weight

ROWS_OF_WEIGHT = 64  # so that slices end at whole SIMD packets
SLICE_BYTES = 16 * WIDTH * 4
OPTIMIZERS = {
    "adam": lambda: v1.train.AdamOptimizer(0.01),
    "momentum": lambda: v1.train.MomentumOptimizer(0.1, 0.9, use_nesterov=True),
    "sgd": lambda: v1.train.GradientDescentOptimizer(0.1),
}


def deep(optimizer: Any, depth: int) -> Small:
    """A graph with so many pairs of weights."""

    def model(x: Any, step: Any) -> tuple[Any, Any]:
        for layer in range(depth):
            x = tf.tanh(tf.matmul(x, weight(f"w{layer}", (WIDTH, ROWS_OF_WEIGHT))))
            x = tf.tanh(tf.matmul(x, weight(f"u{layer}", (ROWS_OF_WEIGHT, WIDTH))))
        loss = tf.reduce_mean(tf.square(x))
        return loss, optimizer().minimize(loss, step)

    return build(model)


def run(small: Small, window_bytes: int, slice_bytes: int) -> Outcome:
    streamed = run_small(small, "weight_streaming", 3, window_bytes=window_bytes, slice_bytes=slice_bytes)
    assert streamed.bits() == run_small(small, "pipelined", 3).bits()
    return streamed


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("window_bytes", [1, 32_768], ids=["fetched", "kept"])
@pytest.mark.parametrize("slice_bytes", [SLICE_BYTES, 10**6], ids=["slices", "whole"])
def test_weights_of_an_optimizer_share_functions(optimizer: str, window_bytes: int, slice_bytes: int) -> None:
    program = run(deep(OPTIMIZERS[optimizer], 2), window_bytes, slice_bytes).program
    functions = {function.signature.name for function in program.graph_def.library.function}
    called = [node.attr["f"].func.name for node in program.graph_def.node if node.op == "StatefulPartitionedCall"]
    assert functions == set(called)
    kept = {event.weight for event in program.events if event.kind == "replace"}
    assert len(kept) == (4 if window_bytes > 1 else 1)  # nothing moves between the last weight's use and its update
    assert len(functions) == (1 if window_bytes > 1 else 2)  # with and without a load of the weight
    assert len(called) >= (8 if slice_bytes == SLICE_BYTES else 4)


def test_a_layer_adds_few_nodes_for_its_updates() -> None:
    sizes = []
    for depth in (2, 3):
        small = deep(OPTIMIZERS["adam"], depth)
        program = run_small(small, "weight_streaming", 1, window_bytes=1).program
        sizes.append(len(program.graph_def.node) - len(small.step.graph_def.node))
    assert sizes[1] - sizes[0] <= 2 * 12  # 2 weights; 31 for each if every op of an update were a node
