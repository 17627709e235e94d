"""Variables of our models have the names and shapes of the public Model Zoo's checkpoints (two layers each)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import tensorflow as tf

from reference_implementations.bert.model import pretraining_logits
from reference_implementations.bert.settings import BertSettings
from reference_implementations.gpt2.model import gpt2_logits
from reference_implementations.gpt2.settings import Gpt2Settings
from reference_implementations.t5.model import t5_logits
from reference_implementations.t5.settings import T5Settings

H, F, V, P = 32, 64, 512, 32


def layer(scope: str, shape: list[int], has_bias: bool = True) -> dict[str, list[int]]:
    name = f"{scope}/{scope.rpartition('/')[2]}"
    return {f"{name}/kernel": shape} | ({f"{name}/bias": shape[1:]} if has_bias else {})


def norm(scope: str) -> dict[str, list[int]]:
    name = f"{scope}/{scope.rpartition('/')[2]}"
    return {f"{name}/gamma": [H], f"{name}/beta": [H]}


def attention(scope: str, has_bias: bool = True) -> dict[str, list[int]]:
    parts = ("q_projection", "k_projection", "v_projection", "output_transform")
    return {name: shape for part in parts for name, shape in layer(f"{scope}/{part}", [H, H], has_bias).items()}


def feed_forward(scope: str, first: str, second: str, has_bias: bool = True) -> dict[str, list[int]]:
    return layer(f"{scope}/{first}", [H, F], has_bias) | layer(f"{scope}/{second}", [F, H], has_bias)


GPT2 = (
    {"input_embedding/embedding_weights": [V, H], "position_embedding/position_embedding_weights": [P, H]}
    | norm("decoder/layer_normalization_layer")
    | attention("decoder/self_attention")
    | norm("decoder/layer_normalization_layer_2")
    | feed_forward("decoder/ffn", "dense_layer", "dense_layer_1")
    | norm("decoder/layer_normalization_layer_3")
    | attention("decoder/self_attention_1")
    | norm("decoder/layer_normalization_layer_5")
    | feed_forward("decoder/ffn_1", "dense_layer_2", "dense_layer_3")
    | norm("post_decoder_layer_norm")
)

BERT = (
    {
        "input_embedding/embedding_weights": [V, H],
        "position_embedding/position_embedding_weights": [P, H],
        "segment_embedding/segment_embedding_weights": [2, H],
        "mlm_layer/mlm_bias": [V],
    }
    | norm("pre_encoder_layer_norm")
    | attention("encoder/self_attention")
    | norm("encoder/layer_normalization_layer")
    | feed_forward("encoder/ffn", "dense_layer", "dense_layer_1")
    | norm("encoder/layer_normalization_layer_1")
    | attention("encoder/self_attention_1")
    | norm("encoder/layer_normalization_layer_2")
    | feed_forward("encoder/ffn_1", "dense_layer_2", "dense_layer_3")
    | norm("encoder/layer_normalization_layer_3")
    | layer("cls_layer/cls_dense", [H, H])
    | layer("cls_layer/cls_output_dense", [H, 2])
    | layer("mlm_layer/mlm_ffn", [H, H])
    | norm("mlm_layer/mlm_layer_norm")
)

T5 = (
    {
        "encoder_embedding/embedding_weights": [224, H],
        "encoder/relative_attention_bias": [32, 4],
        "decoder/relative_attention_bias": [32, 4],
    }
    | norm("encoder/layer_normalization_layer")
    | attention("encoder/self_attention", has_bias=False)
    | norm("encoder/layer_normalization_layer_1")
    | feed_forward("encoder/ffn", "dense_layer", "dense_layer_1", has_bias=False)
    | norm("encoder/layer_normalization_layer_2")
    | attention("encoder/self_attention_1", has_bias=False)
    | norm("encoder/layer_normalization_layer_3")
    | feed_forward("encoder/ffn_1", "dense_layer_2", "dense_layer_3", has_bias=False)
    | norm("encoder/layer_normalization_layer_4")
    | norm("decoder/layer_normalization_layer_5")
    | attention("decoder/self_attention", has_bias=False)
    | norm("decoder/layer_normalization_layer_6")
    | attention("decoder/encoder_decoder_attention", has_bias=False)
    | norm("decoder/layer_normalization_layer_7")
    | feed_forward("decoder/ffn", "dense_layer_4", "dense_layer_5", has_bias=False)
    | norm("decoder/layer_normalization_layer_8")
    | attention("decoder/self_attention_1", has_bias=False)
    | norm("decoder/layer_normalization_layer_9")
    | attention("decoder/encoder_decoder_attention_1", has_bias=False)
    | norm("decoder/layer_normalization_layer_10")
    | feed_forward("decoder/ffn_1", "dense_layer_6", "dense_layer_7", has_bias=False)
    | norm("decoder/layer_normalization_layer_11")
)


def build_gpt2() -> Any:
    settings = Gpt2Settings(
        vocab_size=V, hidden_size=H, num_hidden_layers=2, num_heads=4, filter_size=F, max_position_embeddings=P
    )
    return gpt2_logits(tf.zeros([2, 8], tf.int32), settings, is_training=True)


def build_bert() -> Any:
    settings = BertSettings(
        vocab_size=V, hidden_size=H, num_hidden_layers=2, num_heads=4, filter_size=F, max_position_embeddings=P
    )
    names = ("input_ids", "input_mask", "segment_ids", "masked_lm_positions")
    return pretraining_logits({name: tf.zeros([2, 8], tf.int32) for name in names}, settings, is_training=True)


def build_t5() -> Any:
    settings = T5Settings(
        src_vocab_size=224,
        d_model=H,
        d_kv=8,
        d_ff=F,
        encoder_num_hidden_layers=2,
        decoder_num_hidden_layers=2,
        num_heads=4,
        use_t5_layer_norm=False,
    )
    return t5_logits(tf.zeros([2, 8], tf.int32), tf.zeros([2, 6], tf.int32), settings, is_training=True)


@pytest.mark.parametrize(("build", "expected"), [(build_gpt2, GPT2), (build_bert, BERT), (build_t5, T5)])
def test_variables_have_the_published_names_and_shapes(
    build: Callable[[], Any], expected: dict[str, list[int]]
) -> None:
    with tf.Graph().as_default():
        build()
        shapes = {variable.op.name: variable.shape.as_list() for variable in tf.compat.v1.global_variables()}
    assert shapes == expected
