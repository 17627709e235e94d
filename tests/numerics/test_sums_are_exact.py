"""A step with sums of several tensors gives the same bits in every run, with any timing and in both modes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

from cerebras_tensorflow.graph.program import WeightSpec
from cerebras_tensorflow.runtime.weight_store.file import FileStore
from cerebras_tensorflow.runtime.weight_store.interface import WeightStore
from tests.numerics.cpu_load import cpu_load
from tests.numerics.streaming import VOCABULARY, Built, assert_same_bits, build, opened

v1 = tf.compat.v1
HIDDEN = 64
RUNS = 60


def many_sums(ids_BS: Any, labels_BS: Any) -> Any:
    """Sums of four tensors, two of which another op holds for a time that differs from run to run."""

    def weight(name: str, shape: list[int]) -> Any:
        return v1.get_variable(name, shape, initializer=v1.random_normal_initializer(stddev=0.2))

    table_VH = weight("table", [VOCABULARY, HIDDEN])
    x_TH = tf.reshape(tf.nn.embedding_lookup(table_VH, ids_BS), [-1, HIDDEN])
    for layer in range(4):
        w_HH = weight(f"w{layer}", [HIDDEN, HIDDEN])
        parts = [tf.sin(tf.matmul(x_TH, w_HH) * (number + 1.0)) for number in range(4)]
        held = [
            tf.stop_gradient(tf.matmul(tf.matmul(part, tf.ones([HIDDEN, wide])), tf.ones([wide, HIDDEN]))) * 1e-4
            for part, wide in zip(parts, (800, 600), strict=False)
        ]
        x_TH = 0.25 * tf.add_n(parts) + 0.1 * tf.add_n(held)
    logits_TV = tf.matmul(x_TH, table_VH, transpose_b=True)
    losses_T = tf.nn.sparse_softmax_cross_entropy_with_logits(tf.reshape(labels_BS, [-1]), logits_TV)
    return tf.reduce_mean(losses_T)


@pytest.fixture(scope="module")
def built() -> Built:
    """The step, with Adam."""
    return build(lambda loss, step: v1.train.AdamOptimizer(1e-2).minimize(loss, step), many_sums)


def weights_after_one_step(built: Built, mode: str, runs: int, folder: Path | None = None) -> set[bytes]:
    """Take one step from the same weights on the same batch, several times; return the different results."""

    def in_folder(specs: Sequence[WeightSpec]) -> WeightStore:
        assert folder is not None
        return FileStore(specs, folder)

    results = set()
    make_store = in_folder if folder else None
    with opened(built, mode, runs, make_store, threads=8, repeats_batch=True) as session:
        for _ in range(runs):
            for name, value in built.values.items():
                session.load(name, value.copy())
            session.run(built.train_op)
            results.add(b"".join(session.read(name).tobytes() for name in built.values))
    return results


def test_many_runs_of_one_step_give_one_result(built: Built, tmp_path: Path) -> None:
    with cpu_load():
        pipelined = weights_after_one_step(built, "pipelined", RUNS)
        spilled = weights_after_one_step(built, "weight_streaming", 3, tmp_path)
    assert len(pipelined) == 1
    assert spilled == pipelined


def test_spilling_partial_sums_changes_no_bit(built: Built, tmp_path: Path) -> None:
    streamed = assert_same_bits(built, tmp_path, steps=4)
    assert any("/cs_sum_" in spec.name for spec in streamed.program.spilled)
    assert not any(node.op == "AddN" for node in streamed.program.graph_def.node)
