"""Our Llama gives the logits of Hugging Face transformers' LlamaForCausalLM for the same weights."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from reference_implementations.llama.model import llama_logits
from reference_implementations.llama.settings import LlamaSettings

pytestmark = [
    pytest.mark.interop,
    # torch and transformers warn about themselves.
    pytest.mark.filterwarnings("ignore"),
]

TINY = LlamaSettings(vocab_size=97, hidden_size=32, num_hidden_layers=2, num_heads=4, filter_size=48)
SHAPES = {
    "a key-value head for each query head": (TINY, 2, 16),
    "two query heads for a key-value head": (dataclasses.replace(TINY, num_kv_heads=2), 3, 9),
    "one key-value head, other base, tied": (
        dataclasses.replace(TINY, num_kv_heads=1, rope_theta=500000.0, share_embedding_weights=True),
        1,
        33,
    ),
}

OURS_TO_THEIRS = (
    (r"input_embedding/embedding_weights", "model.embed_tokens.weight"),
    (r"decoder/(\d+)/attention_norm/.*", r"model.layers.\1.input_layernorm.weight"),
    (r"decoder/(\d+)/mlp_norm/.*", r"model.layers.\1.post_attention_layernorm.weight"),
    (r"decoder/(\d+)/attention/out_proj/.*", r"model.layers.\1.self_attn.o_proj.weight"),
    (r"decoder/(\d+)/attention/(\w_proj)/.*", r"model.layers.\1.self_attn.\2.weight"),
    (r"decoder/(\d+)/mlp/(\w+_proj)/.*", r"model.layers.\1.mlp.\2.weight"),
    (r"post_decoder_norm/.*", "model.norm.weight"),
    (r"lm_head/.*", "lm_head.weight"),
)


def their_name(name: str) -> str:
    for pattern, replacement in OURS_TO_THEIRS:
        if re.fullmatch(pattern, name):
            return re.sub(pattern, replacement, name)
    raise AssertionError(f"no counterpart for {name}")


@pytest.mark.parametrize("name", SHAPES)
def test_logits_equal_those_of_transformers(name: str, run_ours: Callable[..., Any]) -> None:
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    settings, batch, sequence = SHAPES[name]
    ids_BS = np.random.default_rng(7).integers(0, settings.vocab_size, [batch, sequence], dtype=np.int32)
    ours = run_ours(lambda: [llama_logits(tf.constant(ids_BS), settings, is_training=False)], spread=0.1)
    config = transformers.LlamaConfig(
        vocab_size=settings.vocab_size,
        hidden_size=settings.hidden_size,
        num_hidden_layers=settings.num_hidden_layers,
        num_attention_heads=settings.num_heads,
        num_key_value_heads=settings.kv_heads,
        intermediate_size=settings.filter_size,
        max_position_embeddings=settings.max_position_embeddings,
        hidden_act=settings.nonlinearity,
        rms_norm_eps=settings.layer_norm_epsilon,
        rope_parameters={"rope_type": "default", "rope_theta": settings.rope_theta},
        tie_word_embeddings=settings.share_embedding_weights,
        bos_token_id=0,
        eos_token_id=0,
    )
    model = transformers.LlamaForCausalLM(config).eval()
    # torch keeps a linear layer's weight as (outputs, inputs).
    state = {
        their_name(name): torch.from_numpy(np.ascontiguousarray(value.T if name.endswith("kernel") else value))
        for name, value in ours.weights.items()
    }
    missing, unexpected = model.load_state_dict(state, strict=False)
    assert not unexpected
    assert missing == (["lm_head.weight"] if settings.share_embedding_weights else [])
    with torch.no_grad():
        theirs = model(torch.from_numpy(ids_BS.astype(np.int64))).logits.numpy()
    assert np.std(theirs) > 0.05  # else agreement would mean nothing
    # float32 on both sides; the sums run in different orders.
    np.testing.assert_allclose(ours.values[0], theirs, rtol=0, atol=1e-4)
