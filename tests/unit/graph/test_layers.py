"""Layers that are recognised in a TensorFlow graph, against the list that follows from the model's shape."""

from __future__ import annotations

import tensorflow as tf

from cerebras_tensorflow.graph.layers import find_network
from cerebras_tensorflow.system.wafer.layers import ATTENTION, EMBEDDING, LOSS, MATRIX_PRODUCT, NORM, Network
from cerebras_tensorflow.system.wafer.transformers import Transformer
from reference_implementations.gptj.model import gptj_logits
from reference_implementations.gptj.settings import GptjSettings

BATCH, SEQUENCE, HIDDEN, FILTER, WORDS, BLOCKS = 3, 16, 32, 64, 50, 2


def gptj(is_training: bool) -> Network:
    settings = GptjSettings(
        vocab_size=WORDS,
        hidden_size=HIDDEN,
        num_hidden_layers=BLOCKS,
        num_heads=4,
        filter_size=FILTER,
        rotary_dim=4,
        max_position_embeddings=SEQUENCE,
        share_embedding_weights=False,
    )
    with tf.Graph().as_default() as graph:
        ids = tf.compat.v1.placeholder(tf.int32, [BATCH, SEQUENCE], name="ids")
        logits = gptj_logits(ids, settings, is_training)
        loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=ids, logits=logits))
        roots = [loss.op, tf.compat.v1.train.AdamOptimizer().minimize(loss)] if is_training else [loss.op]
    return find_network(graph, step_of(graph, roots), BATCH, 4 * BATCH * SEQUENCE, is_training)


def step_of(graph: tf.Graph, roots: list[tf.Operation]) -> list[str]:
    step = tf.compat.v1.graph_util.extract_sub_graph(graph.as_graph_def(), [root.name for root in roots])
    return [node.name for node in step.node]


def test_layers_of_a_compiled_transformer_are_those_of_its_shape() -> None:
    found, expected = gptj(True), Transformer(HIDDEN, BLOCKS, 4, FILTER, WORDS, SEQUENCE).network()
    kinds = [layer.kind for layer in found.layers]
    assert [kinds.count(kind) for kind in (MATRIX_PRODUCT, ATTENTION, NORM, EMBEDDING, LOSS)] == [13, 2, 3, 1, 1]
    names = [layer.name for layer in found.layers]
    assert "gptj_decoder/1/attn/q_proj" in names and "gptj_decoder/1/attn" in names and "input_embedding" in names
    assert found.flops == expected.flops
    assert found.slots == 2.0 and found.sample_bytes == 4 * SEQUENCE
    products = {layer.name: layer for layer in found.layers}
    up = products["gptj_decoder/1/mlp/dense_layer_2"]
    assert (up.rows, up.num_weights, up.block) == (SEQUENCE, HIDDEN * FILTER + FILTER, "gptj_decoder/1")
    assert up.flops == 3 * up.forward_flops == 6 * SEQUENCE * HIDDEN * FILTER
    assert up.gradient_bytes == up.weight_bytes == 4 * up.num_weights
    assert (up.input_elements, up.output_elements) == (SEQUENCE * HIDDEN, SEQUENCE * FILTER)
    assert (up.input_features, up.output_features) == (HIDDEN, FILTER)
    assert found.num_weights == sum(layer.num_weights for layer in found.layers)


def test_a_forward_step_has_a_third_of_the_operations_and_no_gradients() -> None:
    found = gptj(False)
    assert 3 * found.flops == gptj(True).flops
    assert not any(layer.gradient_bytes for layer in found.layers)


def test_products_without_scopes_are_named_by_their_weights_and_shared_weights_count_once() -> None:
    with tf.Graph().as_default() as graph:
        x = tf.compat.v1.placeholder(tf.float32, [4, 8])
        shared = tf.compat.v1.get_variable("shared", [8, 8], use_resource=True)
        last = tf.compat.v1.get_variable("last", [8, 8], use_resource=True)
        product = tf.matmul(tf.matmul(tf.matmul(x, shared), shared), last)
    found = find_network(graph, step_of(graph, [product.op]), 4, 128, False)
    assert [layer.name for layer in found.layers] == ["shared", "shared_2", "last"]
    assert [layer.num_own_weights for layer in found.layers] == [64, 0, 64]
    assert found.flops == 3 * 2 * 64


def test_a_norm_of_moments_is_no_loss_and_only_slots_count_as_slots() -> None:
    with tf.Graph().as_default() as graph:
        v1 = tf.compat.v1
        x = v1.placeholder(tf.float32, [4, 8])
        with v1.variable_scope("block"):
            kernel = v1.get_variable("kernel", [8, 8], use_resource=True)
            v1.get_variable("kernel_mask", [8, 8], trainable=False, use_resource=True)
            v1.get_variable("moving_mean", [8], trainable=False, use_resource=True)
            y = tf.matmul(x, kernel)
            mean, variance = tf.nn.moments(y, [1], keepdims=True, name="norm/moments")
            y = tf.multiply(y - mean, tf.math.rsqrt(variance + 1e-5), name="norm/scaled")
        loss = tf.reduce_mean(tf.math.squared_difference(y, x))
        train = v1.train.MomentumOptimizer(0.1, 0.9).minimize(loss)
    found = find_network(graph, step_of(graph, [loss.op, train]), 4, 128, True)
    assert [layer.kind for layer in found.layers] == [MATRIX_PRODUCT, NORM, LOSS]
    assert found.slots == 1.0
