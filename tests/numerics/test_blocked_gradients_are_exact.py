"""The gradient of a vocabulary is computed in blocks of rows. Both modes have the same bits."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

from cerebras_tensorflow.compiler.slicing import blocked_gradients
from tests.numerics.streaming import VOCABULARY, assert_same_bits, build, transformer_loss
from tests.numerics.test_weight_streaming_is_exact import adam, decoupled_decay

v1 = tf.compat.v1
HIDDEN = 256


def untied_loss(ids_BS: Any, labels_BS: Any) -> Any:
    """Mean cross entropy of one layer with two vocabularies."""
    table = v1.get_variable("words", [VOCABULARY, HIDDEN], initializer=v1.random_normal_initializer(stddev=0.05))
    kernel = v1.get_variable("head", [HIDDEN, VOCABULARY], initializer=v1.random_normal_initializer(stddev=0.05))
    x = tf.nn.tanh(tf.reshape(tf.nn.embedding_lookup(table, ids_BS), [-1, HIDDEN]))
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(tf.reshape(labels_BS, [-1]), tf.matmul(x, kernel))
    return tf.reduce_mean(losses)


@pytest.mark.parametrize("optimizer", [adam, decoupled_decay], ids=lambda function: function.__name__)
@pytest.mark.parametrize(
    "loss", [partial(transformer_loss, hidden=HIDDEN, layers=1), untied_loss], ids=["tied", "untied"]
)
def test_no_op_has_the_whole_gradient(
    optimizer: Callable[[Any, Any], Any],
    loss: Callable[[Any, Any], Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(blocked_gradients, "MIN_VOCABULARY_BYTES", 90_000)
    monkeypatch.setattr(blocked_gradients, "_LONG", 2.5)
    monkeypatch.setattr(blocked_gradients, "BLOCK_BYTES", 16_000)
    program = assert_same_bits(build(optimizer, loss), tmp_path, steps=5).program
    blocks = [node for node in program.graph_def.node if node.op == "MatMul" and "/cs_block_" in node.name]
    assert len(blocks) >= 6
    whole = {node.name.split("/cs_block_")[0] for node in blocks}
    assert not whole & {node.name for node in program.graph_def.node}, "no op joins the blocks"
    for gradient in whole:
        early = [n.name for n in blocks if n.name.startswith(gradient) and not any("^" in text for text in n.input)]
        assert len(early) <= 2, "a block is computed for its slice, not before"
