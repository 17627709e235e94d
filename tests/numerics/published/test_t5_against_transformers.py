"""Our T5 gives the logits of Hugging Face transformers' T5ForConditionalGeneration for the same weights."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from reference_implementations.common.layers.basic import numbered
from reference_implementations.t5.model import t5_logits
from reference_implementations.t5.settings import T5Settings

pytestmark = [
    pytest.mark.interop,
    # torch and transformers warn about themselves.
    pytest.mark.filterwarnings("ignore"),
]

TINY = T5Settings(
    src_vocab_size=97,
    d_model=32,
    d_kv=8,
    d_ff=48,
    encoder_num_hidden_layers=2,
    decoder_num_hidden_layers=3,
    num_heads=4,
)
SHAPES = {
    "two and three blocks": (TINY, 2, 11, 7),
    "past the farthest bucket": (
        dataclasses.replace(TINY, relative_attention_num_buckets=8, relative_attention_max_distance=16),
        1,
        40,
        35,
    ),
    "untied, heads wider than the model": (dataclasses.replace(TINY, share_embedding_weights=False, d_kv=16), 3, 5, 9),
}


def their_weights(settings: T5Settings, ours: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """T5ForConditionalGeneration's state by our variables."""
    table = ours["encoder_embedding/embedding_weights"]
    theirs = {"shared.weight": table, "encoder.embed_tokens.weight": table, "decoder.embed_tokens.weight": table}

    def add(name: str, scope: str) -> None:
        last = scope.rpartition("/")[2]
        kernel = ours.get(f"{scope}/{last}/kernel")
        # torch keeps a linear layer's weight as (outputs, inputs).
        theirs[f"{name}.weight"] = ours[f"{scope}/{last}/gamma"] if kernel is None else kernel.T

    norm = dense = 0
    for stack, num_blocks in (
        ("encoder", settings.encoder_num_hidden_layers),
        ("decoder", settings.decoder_num_hidden_layers),
    ):
        first = f"{stack}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
        theirs[first] = ours[f"{stack}/relative_attention_bias"]
        for index in range(num_blocks):
            layers = [("self_attention", "SelfAttention")]
            if stack == "decoder":
                layers.append(("encoder_decoder_attention", "EncDecAttention"))
            for number, (scope, name) in enumerate(layers):
                for part, letter in (("q_projection", "q"), ("k_projection", "k"), ("v_projection", "v")):
                    attention = f"{stack}/{numbered(scope, index)}"
                    add(f"{stack}.block.{index}.layer.{number}.{name}.{letter}", f"{attention}/{part}")
                add(f"{stack}.block.{index}.layer.{number}.{name}.o", f"{attention}/output_transform")
            for part in ("wi", "wo"):
                scope = f"{stack}/{numbered('ffn', index)}/{numbered('dense_layer', dense)}"
                add(f"{stack}.block.{index}.layer.{len(layers)}.DenseReluDense.{part}", scope)
                dense += 1
            for number in range(len(layers) + 1):
                scope = f"{stack}/{numbered('layer_normalization_layer', norm)}"
                add(f"{stack}.block.{index}.layer.{number}.layer_norm", scope)
                norm += 1
        add(f"{stack}.final_layer_norm", f"{stack}/{numbered('layer_normalization_layer', norm)}")
        norm += 1
    if not settings.share_embedding_weights:
        add("lm_head", "lm_output_layer")
    return theirs


@pytest.mark.parametrize("name", SHAPES)
def test_logits_equal_those_of_transformers(name: str, run_ours: Callable[..., Any]) -> None:
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    settings, batch, num_inputs, num_outputs = SHAPES[name]
    rng = np.random.default_rng(7)
    ids_BT = rng.integers(0, settings.src_vocab_size, [batch, num_inputs], dtype=np.int32)
    decoder_ids_BS = rng.integers(0, settings.src_vocab_size, [batch, num_outputs], dtype=np.int32)
    ours = run_ours(
        lambda: [t5_logits(tf.constant(ids_BT), tf.constant(decoder_ids_BS), settings, is_training=False)], spread=0.15
    )
    config = transformers.T5Config(
        vocab_size=settings.src_vocab_size,
        d_model=settings.d_model,
        d_kv=settings.d_kv,
        d_ff=settings.d_ff,
        num_layers=settings.encoder_num_hidden_layers,
        num_decoder_layers=settings.decoder_num_hidden_layers,
        num_heads=settings.num_heads,
        relative_attention_num_buckets=settings.relative_attention_num_buckets,
        relative_attention_max_distance=settings.relative_attention_max_distance,
        layer_norm_epsilon=settings.layer_norm_epsilon,
        feed_forward_proj=settings.nonlinearity,
        tie_word_embeddings=settings.share_embedding_weights,
        pad_token_id=0,
        decoder_start_token_id=0,
    )
    model = transformers.T5ForConditionalGeneration(config).eval()
    weights = their_weights(settings, ours.weights)
    state = {name: torch.from_numpy(np.ascontiguousarray(value)) for name, value in weights.items()}
    if not settings.share_embedding_weights:
        # transformers 5 always ties the output layer, ignoring the config; assigning a new weight unties it.
        model.lm_head.weight = torch.nn.Parameter(torch.empty_like(model.lm_head.weight))
    missing, unexpected = model.load_state_dict(state, strict=False)
    assert not unexpected
    assert [name for name in missing if name != "lm_head.weight" or not settings.share_embedding_weights] == []
    with torch.no_grad():
        theirs = model(
            input_ids=torch.from_numpy(ids_BT.astype(np.int64)),
            attention_mask=torch.ones(batch, num_inputs, dtype=torch.int64),
            decoder_input_ids=torch.from_numpy(decoder_ids_BS.astype(np.int64)),
        ).logits.numpy()
    assert np.std(theirs) > 0.05  # else agreement would mean nothing
    # float32 on both sides; the sums run in different orders.
    np.testing.assert_allclose(ours.values[0], theirs, rtol=0, atol=1e-4)
