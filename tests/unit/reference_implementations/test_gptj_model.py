"""GPT-J's variables, its options, and that it learns."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from reference_implementations.gptj.model import gptj_logits, model_fn
from reference_implementations.gptj.settings import GptjSettings

TINY = GptjSettings(vocab_size=31, hidden_size=16, num_hidden_layers=2, num_heads=2, filter_size=32, rotary_dim=4)


def params(model: GptjSettings, **optimizer: Any) -> dict[str, Any]:
    return {"model": dataclasses.asdict(model), "optimizer": optimizer}


def variables_of(settings: GptjSettings) -> dict[str, list[int]]:
    with tf.Graph().as_default():
        ids = tf.compat.v1.placeholder(tf.int32, [2, 8])
        model_fn({"input_ids": ids, "input_mask": ids}, ids, "train", params(settings, optimizer_type="adamw"))
        return {variable.op.name: variable.shape.as_list() for variable in tf.compat.v1.global_variables()}


def test_variables_are_named_and_shaped_as_in_the_public_model_zoo() -> None:
    expected = {"input_embedding/embedding_weights": [31, 16]}
    for layer in range(2):
        block = f"gptj_decoder/{layer}"
        first = f"dense_layer_{2 * layer}" if layer else "dense_layer"
        second = f"dense_layer_{2 * layer + 1}"
        expected |= {f"{block}/ln_1/ln_1/{part}": [16] for part in ("gamma", "beta")}
        expected |= {f"{block}/attn/{part}_proj/{part}_proj/kernel": [16, 16] for part in ("q", "k", "v", "out")}
        expected |= {f"{block}/mlp/{first}/{first}/kernel": [16, 32], f"{block}/mlp/{first}/{first}/bias": [32]}
        expected |= {f"{block}/mlp/{second}/{second}/kernel": [32, 16], f"{block}/mlp/{second}/{second}/bias": [16]}
    expected |= {f"post_decoder_layer_norm/post_decoder_layer_norm/{part}": [16] for part in ("gamma", "beta")}
    expected |= {"lm_head/lm_head/kernel": [16, 31], "lm_head/lm_head/bias": [31]}
    slots = {f"{name}/{slot}": shape for name, shape in expected.items() for slot in ("AdamW", "AdamW_1")}
    assert variables_of(TINY) == expected | slots | {"global_step": [], "beta1_power": [], "beta2_power": []}


def test_shared_embeddings_leave_only_a_bias_at_the_root() -> None:
    names = variables_of(dataclasses.replace(TINY, share_embedding_weights=True))
    assert names["bias"] == [31]
    assert not any(name.startswith("lm_head") for name in names)


def test_a_token_does_not_see_later_ones() -> None:
    ids_BS = np.random.default_rng(0).integers(0, 31, [1, 8], dtype=np.int32)
    changed_BS = ids_BS.copy()
    changed_BS[0, 5] = (changed_BS[0, 5] + 1) % 31
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        feed = tf.compat.v1.placeholder(tf.int32, [1, 8])
        logits = gptj_logits(feed, dataclasses.replace(TINY, initializer_range=0.3), is_training=False)
        session.run(tf.compat.v1.global_variables_initializer())
        before, after = session.run(logits, {feed: ids_BS}), session.run(logits, {feed: changed_BS})
    np.testing.assert_array_equal(before[0, :5], after[0, :5])
    assert np.abs(before[0, 5:] - after[0, 5:]).max(axis=-1).min() > 1e-4


def test_mixed_precision_computes_in_bfloat16_on_float32_variables() -> None:
    with tf.Graph().as_default():
        ids = tf.compat.v1.placeholder(tf.int32, [2, 8])
        logits = gptj_logits(ids, dataclasses.replace(TINY, mixed_precision=True), is_training=True)
        assert logits.dtype == tf.bfloat16
        assert {variable.dtype.base_dtype for variable in tf.compat.v1.global_variables()} == {tf.float32}


@pytest.mark.parametrize("mixed_precision", [False, True])
@pytest.mark.parametrize("shared", [False, True])
def test_the_model_learns_a_repeating_text(mixed_precision: bool, shared: bool) -> None:
    settings = dataclasses.replace(
        TINY, mixed_precision=mixed_precision, share_embedding_weights=shared, residual_dropout_rate=0.1
    )
    text = np.tile(np.arange(30, dtype=np.int32), 4)
    ids_BS = np.stack([text[start : start + 16] for start in range(8)])
    labels_BS = np.stack([text[start + 1 : start + 17] for start in range(8)])
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        tf.compat.v1.set_random_seed(3)
        features = {"input_ids": tf.constant(ids_BS), "input_mask": tf.ones_like(ids_BS)}
        spec = model_fn(
            features,
            tf.constant(labels_BS),
            "train",
            params(settings, optimizer_type="adamw", learning_rate=0.02, max_gradient_norm=1.0),
        )
        session.run(tf.compat.v1.global_variables_initializer())
        losses = [session.run([spec.loss, spec.train_op])[0] for _ in range(60)]
    assert losses[0] == pytest.approx(np.log(31), abs=0.3)  # knows nothing yet
    assert losses[-1] < 1.0


def test_masked_positions_do_not_count() -> None:
    ids = tf.constant
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        values = np.arange(8, dtype=np.int32)[None]
        mask = np.array([[1, 1, 1, 1, 0, 0, 0, 0]], np.int32)
        labels = tf.compat.v1.placeholder(tf.int32, [1, 8])
        spec = model_fn({"input_ids": ids(values), "input_mask": ids(mask)}, labels, "eval", params(TINY))
        session.run(tf.compat.v1.global_variables_initializer())
        one = session.run(spec.loss, {labels: [[1, 2, 3, 4, 5, 6, 7, 8]]})
        other = session.run(spec.loss, {labels: [[1, 2, 3, 4, 9, 9, 9, 9]]})
    assert one == other
