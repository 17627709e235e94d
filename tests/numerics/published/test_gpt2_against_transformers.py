"""Our GPT-2 gives the logits and the gradients of Hugging Face transformers' GPT2LMHeadModel for the same weights."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from reference_implementations.common.language_model import masked_mean, token_losses
from reference_implementations.common.layers.basic import numbered
from reference_implementations.gpt2.model import gpt2_logits
from reference_implementations.gpt2.settings import Gpt2Settings

pytestmark = [
    pytest.mark.interop,
    # torch and transformers warn about themselves.
    pytest.mark.filterwarnings("ignore"),
]

TINY = Gpt2Settings(
    vocab_size=97, hidden_size=32, num_hidden_layers=3, num_heads=4, filter_size=64, max_position_embeddings=40
)
SHAPES = {
    "three layers": (TINY, 2, 16),
    "one head, all positions": (dataclasses.replace(TINY, num_heads=1), 3, 40),
    "untied": (dataclasses.replace(TINY, share_embedding_weights=False), 1, 7),
}


def their_weights(settings: Gpt2Settings, ours: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """GPT2LMHeadModel's state by our variables, or its gradients by ours; its Conv1D weights are (in, out) as ours."""
    theirs = {
        "transformer.wte.weight": ours["input_embedding/embedding_weights"],
        "transformer.wpe.weight": ours["position_embedding/position_embedding_weights"],
        "transformer.ln_f.weight": ours["post_decoder_layer_norm/post_decoder_layer_norm/gamma"],
        "transformer.ln_f.bias": ours["post_decoder_layer_norm/post_decoder_layer_norm/beta"],
    }
    if settings.share_embedding_weights:
        theirs["lm_head.weight"] = theirs["transformer.wte.weight"]
    else:
        theirs["lm_head.weight"] = ours["lm_output_layer/lm_output_layer/kernel"].T
    for layer in range(settings.num_hidden_layers):
        block = f"transformer.h.{layer}"
        for number, name in ((3 * layer, "ln_1"), (3 * layer + 2, "ln_2")):
            scope = numbered("layer_normalization_layer", number)
            theirs[f"{block}.{name}.weight"] = ours[f"decoder/{scope}/{scope}/gamma"]
            theirs[f"{block}.{name}.bias"] = ours[f"decoder/{scope}/{scope}/beta"]
        attention = f"decoder/{numbered('self_attention', layer)}"
        for kind, theirs_kind in (("kernel", "weight"), ("bias", "bias")):
            parts = [ours[f"{attention}/{part}_projection/{part}_projection/{kind}"] for part in "qkv"]
            theirs[f"{block}.attn.c_attn.{theirs_kind}"] = np.concatenate(parts, axis=-1)
            theirs[f"{block}.attn.c_proj.{theirs_kind}"] = ours[f"{attention}/output_transform/output_transform/{kind}"]
            for number, name in ((2 * layer, "c_fc"), (2 * layer + 1, "c_proj")):
                scope = f"decoder/{numbered('ffn', layer)}/{numbered('dense_layer', number)}"
                theirs[f"{block}.mlp.{name}.{theirs_kind}"] = ours[f"{scope}/{scope.rpartition('/')[2]}/{kind}"]
    return theirs


def their_model(settings: Gpt2Settings, weights: dict[str, np.ndarray]) -> Any:
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(
        vocab_size=settings.vocab_size,
        n_embd=settings.hidden_size,
        n_layer=settings.num_hidden_layers,
        n_head=settings.num_heads,
        n_inner=settings.filter_size,
        n_positions=settings.max_position_embeddings,
        activation_function=settings.nonlinearity,
        layer_norm_epsilon=settings.layer_norm_epsilon,
        tie_word_embeddings=settings.share_embedding_weights,
        bos_token_id=0,
        eos_token_id=0,
    )
    model = transformers.GPT2LMHeadModel(config).eval()
    state = {name: torch.from_numpy(np.ascontiguousarray(value)) for name, value in weights.items()}
    missing, unexpected = model.load_state_dict(state, strict=False)
    assert not unexpected
    assert [name for name in missing if not name.endswith(("attn.bias", "attn.masked_bias"))] == []
    return model


@pytest.mark.parametrize("name", SHAPES)
def test_logits_and_gradients_equal_those_of_transformers(name: str, run_ours: Callable[..., Any]) -> None:
    settings, batch, sequence = SHAPES[name]
    tokens = np.random.default_rng(7).integers(0, settings.vocab_size, [batch, sequence + 1], dtype=np.int32)
    ids_BS, labels_BS = tokens[:, :-1], tokens[:, 1:]

    def build() -> list[Any]:
        logits = gpt2_logits(tf.constant(ids_BS), settings, is_training=False)
        return [logits, masked_mean(token_losses(logits, tf.constant(labels_BS)), tf.ones_like(ids_BS))]

    ours = run_ours(build, has_loss=True)
    torch = pytest.importorskip("torch")
    model = their_model(settings, their_weights(settings, ours.weights))
    logits = model(torch.from_numpy(ids_BS.astype(np.int64))).logits
    loss = torch.nn.functional.cross_entropy(
        logits.reshape(-1, settings.vocab_size), torch.from_numpy(labels_BS.astype(np.int64)).reshape(-1)
    )
    loss.backward()
    assert np.std(logits.detach().numpy()) > 0.05  # else agreement would mean nothing
    # float32 on both sides; the sums run in different orders.
    np.testing.assert_allclose(ours.values[0], logits.detach().numpy(), rtol=0, atol=1e-4)
    np.testing.assert_allclose(ours.values[1], loss.item(), rtol=1e-5)
    expected = {name: parameter.grad.numpy() for name, parameter in model.named_parameters()}
    for parameter, gradient in their_weights(settings, ours.gradients).items():
        if parameter not in expected:  # the tied output layer, counted with the embedding
            continue
        difference = np.linalg.norm(gradient - expected[parameter]) / np.linalg.norm(expected[parameter])
        assert difference < 1e-4, (parameter, difference)
