"""Our GPT-J gives the logits of Hugging Face transformers' GPTJForCausalLM for the same weights."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from reference_implementations.gptj.model import gptj_logits
from reference_implementations.gptj.settings import GptjSettings

pytestmark = [
    pytest.mark.interop,
    # torch and transformers warn about themselves.
    pytest.mark.filterwarnings("ignore"),
]

TINY = GptjSettings(vocab_size=97, hidden_size=32, num_hidden_layers=2, num_heads=4, filter_size=64, rotary_dim=4)
SHAPES = {
    "two layers": (TINY, 2, 16),
    "all of the head rotated": (dataclasses.replace(TINY, rotary_dim=8), 3, 7),
    "one head": (dataclasses.replace(TINY, num_heads=1, rotary_dim=32), 1, 33),
    "the tiny config": (
        GptjSettings(
            vocab_size=256, hidden_size=256, num_hidden_layers=4, num_heads=4, filter_size=1024, rotary_dim=32
        ),
        2,
        128,
    ),
}

OURS_TO_THEIRS = (
    (r"input_embedding/embedding_weights", "transformer.wte.weight"),
    (r"gptj_decoder/(\d+)/ln_1/ln_1/gamma", r"transformer.h.\1.ln_1.weight"),
    (r"gptj_decoder/(\d+)/ln_1/ln_1/beta", r"transformer.h.\1.ln_1.bias"),
    (r"gptj_decoder/(\d+)/attn/(\w+_proj)/\2/kernel", r"transformer.h.\1.attn.\2.weight"),
    (r"post_decoder_layer_norm/post_decoder_layer_norm/gamma", "transformer.ln_f.weight"),
    (r"post_decoder_layer_norm/post_decoder_layer_norm/beta", "transformer.ln_f.bias"),
    (r"lm_head/lm_head/kernel", "lm_head.weight"),
    (r"lm_head/lm_head/bias", "lm_head.bias"),
)


def their_name(name: str) -> str:
    match = re.fullmatch(r"gptj_decoder/(\d+)/mlp/dense_layer(?:_(\d+))?/.*/(kernel|bias)", name)
    if match:
        layer, number, kind = int(match[1]), int(match[2] or 0), match[3]
        part = {2 * layer: "fc_in", 2 * layer + 1: "fc_out"}[number]
        return f"transformer.h.{layer}.mlp.{part}.{'weight' if kind == 'kernel' else 'bias'}"
    for pattern, replacement in OURS_TO_THEIRS:
        if re.fullmatch(pattern, name):
            return re.sub(pattern, replacement, name)
    raise AssertionError(f"no counterpart for {name}")


def their_logits(settings: GptjSettings, weights: dict[str, np.ndarray], ids_BS: np.ndarray) -> np.ndarray:
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    config = transformers.GPTJConfig(
        vocab_size=settings.vocab_size,
        n_embd=settings.hidden_size,
        n_layer=settings.num_hidden_layers,
        n_head=settings.num_heads,
        n_inner=settings.filter_size,
        rotary_dim=settings.rotary_dim,
        n_positions=settings.max_position_embeddings,
        activation_function=settings.nonlinearity,
        layer_norm_epsilon=settings.layer_norm_epsilon,
        tie_word_embeddings=False,
        bos_token_id=0,
        eos_token_id=0,
    )
    model = transformers.GPTJForCausalLM(config).eval()
    state = {}
    for name, value in weights.items():
        # torch keeps a linear layer's weight as (outputs, inputs).
        state[their_name(name)] = torch.from_numpy(np.ascontiguousarray(value.T if name.endswith("kernel") else value))
    missing, unexpected = model.load_state_dict(state, strict=False)
    assert not unexpected
    assert [name for name in missing if not name.endswith(("attn.bias", "attn.masked_bias", "embed_positions"))] == []
    with torch.no_grad():
        return model(torch.from_numpy(ids_BS.astype(np.int64))).logits.numpy()


@pytest.mark.parametrize("name", SHAPES)
def test_logits_equal_those_of_transformers(name: str, run_ours: Callable[..., Any]) -> None:
    settings, batch, sequence = SHAPES[name]
    rng = np.random.default_rng(7)
    ids_BS = rng.integers(0, settings.vocab_size, [batch, sequence], dtype=np.int32)
    ours = run_ours(lambda: [gptj_logits(tf.constant(ids_BS), settings, is_training=False)])
    theirs = their_logits(settings, ours.weights, ids_BS)
    assert np.std(theirs) > 0.05  # else agreement would mean nothing
    # float32 on both sides; the sums run in different orders.
    np.testing.assert_allclose(ours.values[0], theirs, rtol=0, atol=1e-4)
