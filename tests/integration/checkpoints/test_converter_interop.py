"""The published readers take HDF5 checkpoints that the converter wrote. Needs the package index."""

from __future__ import annotations

import hashlib
import json
import subprocess
from pathlib import Path

import numpy as np
import pytest

from cerebras_tensorflow.converter.api import Options, convert_checkpoint_from_file
from cerebras_tensorflow.converter.torch_writer import TorchWriter

pytestmark = pytest.mark.interop

# Reads with both published readers, the older and the current one.
_READ = """
import hashlib, json, sys, urllib.parse
import numpy as np
from cerebras.appliance.saver.h5_saver import H5Saver
from cerebras.appliance.storage import DeserializationContext, StorageReader

def described(value):
    value = np.asarray(getattr(value, "value", value))
    return [value.dtype.name, list(value.shape), hashlib.sha256(np.ascontiguousarray(value).tobytes()).hexdigest()]

path = sys.argv[1]
legacy = H5Saver().load(path)
reader = StorageReader.get(path)
current = {}
for name in legacy:
    key = urllib.parse.quote(name, safe="")
    content, metadata = reader.read(key)
    current[name] = DeserializationContext(key, metadata).deserialize(content)
print(json.dumps([{n: described(v) for n, v in values.items()} for values in (legacy, current)]))
"""
HIDDEN, VOCABULARY = 8, 11


def weights() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(2)
    shapes = {"wte.weight": [VOCABULARY, HIDDEN], "lm_head.weight": [VOCABULARY, HIDDEN], "lm_head.bias": [VOCABULARY]}
    shapes |= {f"h.0.attn.{part}_proj.weight": [HIDDEN, HIDDEN] for part in ("q", "k", "v", "out")}
    shapes |= {"h.0.mlp.fc_in.weight": [32, HIDDEN], "h.0.mlp.fc_out.weight": [HIDDEN, 32]}
    shapes |= {"h.0.mlp.fc_in.bias": [32], "h.0.mlp.fc_out.bias": [HIDDEN]}
    shapes |= {f"{norm}.{kind}": [HIDDEN] for norm in ("h.0.ln_1", "ln_f") for kind in ("weight", "bias")}
    return {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}


def test_both_published_readers_accept_a_converted_checkpoint(published_python: str, tmp_path: Path) -> None:
    with TorchWriter(tmp_path / "pytorch_model.bin") as writer:
        for name, value in weights().items():
            writer.add(f"transformer.{name}" if not name.startswith("lm_head") else name, value)
    config = {"vocab_size": VOCABULARY, "n_embd": HIDDEN, "n_head": 2, "n_layer": 1, "n_positions": 6}
    (tmp_path / "config.json").write_text(json.dumps(config | {"rotary": True, "rotary_dim": 2}))
    files = (str(tmp_path / "pytorch_model.bin"), str(tmp_path / "config.json"))
    path, _ = convert_checkpoint_from_file("gptj", "hf", "cs-1.8", *files, Options(export_h5_checkpoint=True))

    words = [published_python, "-c", _READ, path]
    done = subprocess.run(words, check=True, capture_output=True, text=True)
    legacy, current = json.loads(done.stdout.splitlines()[-1])
    assert legacy == current
    ours = weights()
    # GPT-J's values are the same on both sides.
    for key, name in {
        "model.embedding_layer.word_embeddings.weight": "wte.weight",
        "model.transformer_decoder.layers.0.self_attn.proj_q_dense_layer.weight": "h.0.attn.q_proj.weight",
        "model.transformer_decoder.layers.0.ffn.ffn.1.linear_layer.bias": "h.0.mlp.fc_out.bias",
        "model.transformer_decoder.norm.weight": "ln_f.weight",
        "model.ln_f.weight": "ln_f.weight",
        "model.lm_head.weight": "lm_head.weight",
    }.items():
        expected = ours[name]
        assert current[key] == ["float32", list(expected.shape), hashlib.sha256(expected.tobytes()).hexdigest()]
    assert len(current) == len(ours) + 2  # scale and shift of the last norm are stored twice
