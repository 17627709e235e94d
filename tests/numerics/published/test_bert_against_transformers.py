"""Our BERT gives the logits and gradients of Hugging Face transformers' BertForPreTraining for the same weights."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from reference_implementations.bert.model import pretraining_logits
from reference_implementations.bert.settings import BertSettings
from reference_implementations.common.language_model import token_losses
from reference_implementations.common.layers.basic import numbered

pytestmark = [
    pytest.mark.interop,
    # torch and transformers warn about themselves.
    pytest.mark.filterwarnings("ignore"),
]

TINY = BertSettings(
    vocab_size=97, hidden_size=32, num_hidden_layers=3, num_heads=4, filter_size=64, max_position_embeddings=40
)
SHAPES = {
    "three layers": (TINY, 2, 16),
    "one head, all positions": (dataclasses.replace(TINY, num_heads=1), 3, 40),
    "tanh gelu": (dataclasses.replace(TINY, nonlinearity="gelu_new", num_hidden_layers=1), 1, 9),
}


def their_weights(settings: BertSettings, ours: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """BertForPreTraining's state by our variables, or its gradients by ours."""
    theirs = {}

    def add(name: str, scope: str) -> None:
        for kind, value in {"kernel": "weight", "gamma": "weight", "bias": "bias", "beta": "bias"}.items():
            array = ours.get(f"{scope}/{scope.rpartition('/')[2]}/{kind}")
            if array is not None:
                # torch keeps a linear layer's weight as (outputs, inputs).
                theirs[f"{name}.{value}"] = array.T if kind == "kernel" else array

    theirs["bert.embeddings.word_embeddings.weight"] = ours["input_embedding/embedding_weights"]
    theirs["bert.embeddings.position_embeddings.weight"] = ours["position_embedding/position_embedding_weights"]
    theirs["bert.embeddings.token_type_embeddings.weight"] = ours["segment_embedding/segment_embedding_weights"]
    add("bert.embeddings.LayerNorm", "pre_encoder_layer_norm")
    add("bert.pooler.dense", "cls_layer/cls_dense")
    add("cls.seq_relationship", "cls_layer/cls_output_dense")
    add("cls.predictions.transform.dense", "mlm_layer/mlm_ffn")
    add("cls.predictions.transform.LayerNorm", "mlm_layer/mlm_layer_norm")
    theirs["cls.predictions.bias"] = ours["mlm_layer/mlm_bias"]
    for layer in range(settings.num_hidden_layers):
        block, attention = f"bert.encoder.layer.{layer}", f"encoder/{numbered('self_attention', layer)}"
        for part, name in (("q", "query"), ("k", "key"), ("v", "value")):
            add(f"{block}.attention.self.{name}", f"{attention}/{part}_projection")
        add(f"{block}.attention.output.dense", f"{attention}/output_transform")
        for number, name in ((2 * layer, "attention.output"), (2 * layer + 1, "output")):
            add(f"{block}.{name}.LayerNorm", f"encoder/{numbered('layer_normalization_layer', number)}")
        ffn = f"encoder/{numbered('ffn', layer)}"
        add(f"{block}.intermediate.dense", f"{ffn}/{numbered('dense_layer', 2 * layer)}")
        add(f"{block}.output.dense", f"{ffn}/{numbered('dense_layer', 2 * layer + 1)}")
    return theirs


def their_model(settings: BertSettings, weights: dict[str, np.ndarray]) -> Any:
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        vocab_size=settings.vocab_size,
        hidden_size=settings.hidden_size,
        num_hidden_layers=settings.num_hidden_layers,
        num_attention_heads=settings.num_heads,
        intermediate_size=settings.filter_size,
        hidden_act=settings.nonlinearity,
        max_position_embeddings=settings.max_position_embeddings,
        layer_norm_eps=settings.layer_norm_epsilon,
        pad_token_id=None,
    )
    model = transformers.BertForPreTraining(config).eval()
    state = {name: torch.from_numpy(np.ascontiguousarray(value)) for name, value in weights.items()}
    missing, unexpected = model.load_state_dict(state, strict=False)
    assert not unexpected
    tied = ("cls.predictions.decoder.weight", "cls.predictions.decoder.bias", "position_ids")
    assert [name for name in missing if not name.endswith(tied)] == []
    return model


@pytest.mark.parametrize("name", SHAPES)
def test_logits_and_gradients_equal_those_of_transformers(name: str, run_ours: Callable[..., Any]) -> None:
    settings, batch, sequence = SHAPES[name]
    rng = np.random.default_rng(7)
    ids_BS = rng.integers(0, settings.vocab_size, [batch, sequence], dtype=np.int32)
    mask_BS = np.ones_like(ids_BS)
    mask_BS[0, sequence - 3 :] = 0  # padding at the end of a sample
    segments_BS = np.tile((np.arange(sequence) >= sequence // 2).astype(np.int32), [batch, 1])
    positions_BP = np.tile(np.arange(sequence, dtype=np.int32), [batch, 1])  # every position, to compare them all
    features = {"input_ids": ids_BS, "input_mask": mask_BS, "segment_ids": segments_BS}
    features["masked_lm_positions"] = positions_BP
    labels_B = rng.integers(0, 2, [batch], dtype=np.int32)
    targets_BS = rng.integers(0, settings.vocab_size, [batch, sequence], dtype=np.int32)

    def build() -> list[Any]:
        constants = {key: tf.constant(value) for key, value in features.items()}
        tokens, classes = pretraining_logits(constants, settings, is_training=False)
        loss = tf.reduce_mean(token_losses(tokens, targets_BS)) + tf.reduce_mean(token_losses(classes, labels_B))
        return [tokens, classes, loss]

    ours = run_ours(build, has_loss=True)
    torch = pytest.importorskip("torch")
    model = their_model(settings, their_weights(settings, ours.weights))
    theirs = model(
        input_ids=torch.from_numpy(ids_BS.astype(np.int64)),
        attention_mask=torch.from_numpy(mask_BS.astype(np.int64)),
        token_type_ids=torch.from_numpy(segments_BS.astype(np.int64)),
    )
    entropy = torch.nn.functional.cross_entropy
    tokens, classes = theirs.prediction_logits, theirs.seq_relationship_logits
    loss = entropy(tokens.reshape(-1, settings.vocab_size), torch.from_numpy(targets_BS.astype(np.int64)).reshape(-1))
    loss = loss + entropy(classes, torch.from_numpy(labels_B.astype(np.int64)))
    loss.backward()
    # float32 on both sides; the sums run in different orders.
    np.testing.assert_allclose(ours.values[0], tokens.detach().numpy(), rtol=0, atol=1e-4)
    np.testing.assert_allclose(ours.values[1], classes.detach().numpy(), rtol=0, atol=1e-4)
    np.testing.assert_allclose(ours.values[2], loss.item(), rtol=1e-5)
    expected = {name: parameter.grad.numpy() for name, parameter in model.named_parameters()}
    for parameter, gradient in their_weights(settings, ours.gradients).items():
        # A bias that the softmax cancels (of the keys) has a gradient of rounding errors only.
        if np.linalg.norm(expected[parameter]) > 1e-6:
            difference = np.linalg.norm(gradient - expected[parameter]) / np.linalg.norm(expected[parameter])
            assert difference < 1e-4, (parameter, difference)
