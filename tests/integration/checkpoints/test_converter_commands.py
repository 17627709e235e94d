"""The converter's commands as the original's documentation has them, pasted into a shell."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import yaml

from cerebras_tensorflow.converter.sharded import open_any
from cerebras_tensorflow.converter.torch_file import Leaf
from cerebras_tensorflow.converter.torch_writer import TorchWriter

ROOT = Path(__file__).parents[3]
# The original is called by the path of its script, ours by the name of its command.
TOOL = f"{sys.executable} -c 'import sys; from cerebras_tensorflow.converter.cli import main; sys.exit(main())'"
H, V = 4, 11


def shell(folder: Path, line: str) -> subprocess.CompletedProcess[str]:
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(line, shell=True, cwd=folder, env=environ, capture_output=True, text=True, timeout=120)


def write(path: Path, shapes: dict[str, list[int]], key: str | None = None) -> None:
    rng = np.random.default_rng(1)
    path.parent.mkdir(parents=True, exist_ok=True)
    tree = None if key is None else {key: {name: Leaf(name) for name in shapes}, "global_step": 10_000}
    with TorchWriter(path, tree=tree) as writer:
        for name, shape in shapes.items():
            writer.add(name, rng.normal(size=shape).astype(np.float32))


def gptj_shapes() -> dict[str, list[int]]:
    shapes = {"transformer.wte.weight": [V, H], "lm_head.weight": [V, H], "lm_head.bias": [V]}
    shapes |= {f"transformer.h.0.attn.{part}_proj.weight": [H, H] for part in ("q", "k", "v", "out")}
    shapes |= {"transformer.h.0.mlp.fc_in.weight": [16, H], "transformer.h.0.mlp.fc_in.bias": [16]}
    shapes |= {"transformer.h.0.mlp.fc_out.weight": [H, 16], "transformer.h.0.mlp.fc_out.bias": [H]}
    shapes |= {f"transformer.{norm}.{kind}": [H] for norm in ("h.0.ln_1", "ln_f") for kind in ("weight", "bias")}
    # Buffers of the published file.
    return shapes | {"transformer.h.0.attn.bias": [1, 1, 6, 6], "transformer.h.0.attn.masked_bias": []}


GPTJ = {"vocab_size": V, "n_embd": H, "n_head": 2, "n_layer": 1, "n_positions": 6, "rotary": True, "rotary_dim": 2}
GPTJ |= {"architectures": ["GPTJForCausalLM"], "use_cache": True, "n_inner": None}


def test_gptj_from_hugging_face(tmp_path: Path) -> None:
    write(tmp_path / "opensource_checkpoints" / "pytorch_model.bin", gptj_shapes())
    (tmp_path / "opensource_checkpoints" / "config.json").write_text(json.dumps(GPTJ))
    done = shell(
        tmp_path,
        f"{TOOL} convert --model gptj --src-fmt hf --tgt-fmt cs-1.8 --output-dir opensource_checkpoints/ "
        "opensource_checkpoints/pytorch_model.bin --config opensource_checkpoints/config.json",
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == (
        "Checkpoint saved to opensource_checkpoints/pytorch_model_to_cs-1.8.mdl\n"
        "Config saved to opensource_checkpoints/config_to_cs-1.8.yaml\n"
    )
    assert "WARNING:root:Key not matched: use_cache\n" in done.stderr
    model = yaml.safe_load((tmp_path / "opensource_checkpoints" / "config_to_cs-1.8.yaml").read_text())["model"]
    assert (model["hidden_size"], model["position_embedding_type"], model["filter_size"]) == (4, "rotary", 16)


def test_gpt2_to_hugging_face_is_written_beside_its_inputs(tmp_path: Path) -> None:
    block = "transformer_decoder.layers.0"
    shapes = {"embedding_layer.word_embeddings.weight": [V, H], "embedding_layer.position_embeddings.weight": [6, H]}
    shapes |= {f"{block}.self_attn.proj_{part}_dense_layer.weight": [H, H] for part in ("q", "k", "v", "output")}
    shapes |= {f"{block}.self_attn.proj_{part}_dense_layer.bias": [H] for part in ("q", "k", "v", "output")}
    shapes |= {f"{block}.ffn.ffn.0.linear_layer.weight": [16, H], f"{block}.ffn.ffn.0.linear_layer.bias": [16]}
    shapes |= {f"{block}.ffn.ffn.1.linear_layer.weight": [H, 16], f"{block}.ffn.ffn.1.linear_layer.bias": [H]}
    norms = (f"{block}.norm1", f"{block}.norm3", "transformer_decoder.norm", "ln_f")
    shapes |= {f"{norm}.{kind}": [H] for norm in norms for kind in ("weight", "bias")} | {"lm_head.weight": [V, H]}
    # As a run of 1.8 saves it: prefixed names and a step counter.
    shapes = {f"model.{name}": shape for name, shape in shapes.items()}
    write(tmp_path / "model_dir" / "checkpoint_10000.mdl", shapes, key="model")
    model = {"vocab_size": V, "hidden_size": H, "num_heads": 2, "num_hidden_layers": 1, "max_position_embeddings": 6}
    model |= {"position_embedding_type": "learned", "filter_size": 16, "nonlinearity": "gelu", "dropout_rate": 0.1}
    (tmp_path / "model_dir" / "train").mkdir()
    params = {"model": model, "optimizer": {"optimizer_type": "AdamW"}}
    (tmp_path / "model_dir" / "train" / "params_train.yaml").write_text(yaml.safe_dump(params))
    done = shell(
        tmp_path,
        f"{TOOL} convert --model gpt2 --src-fmt cs-1.8 --tgt-fmt hf model_dir/checkpoint_10000.mdl "
        "--config model_dir/train/params_train.yaml",
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == (
        "Checkpoint saved to model_dir/checkpoint_10000_to_hf.bin\n"
        "Config saved to model_dir/train/params_train_to_hf.json\n"
    )
    with open_any(tmp_path / "model_dir" / "checkpoint_10000_to_hf.bin") as reader:
        assert reader.entry("transformer.h.0.attn.c_attn.weight").shape == (H, 3 * H)
    config = json.loads((tmp_path / "model_dir" / "train" / "params_train_to_hf.json").read_text())
    assert (config["n_inner"], config["embd_pdrop"], config["model_type"]) == (16, 0.1, "gpt2")


@pytest.mark.parametrize(
    ("name", "model", "expected"),
    [
        ("t5", {"use_pre_encoder_decoder_layer_norm": False}, {"use_pre_encoder_decoder_layer_norm": True}),
        ("transformer", {"use_pre_encoder_decoder_layer_norm": True}, {"use_pre_encoder_decoder_layer_norm": False}),
        (
            "bert",
            {"encoder_nonlinearity": "gelu"},
            {"encoder_nonlinearity": "gelu", "pooler_nonlinearity": "gelu", "mlm_nonlinearity": "gelu"},
        ),
    ],
)
def test_configs_of_release_1_7_are_converted(name: str, model: dict, expected: dict, tmp_path: Path) -> None:
    (tmp_path / "params_train.yaml").write_text(yaml.safe_dump({"model": model}))
    line = f"{TOOL} convert-config --model {name} --src-fmt cs-1.7 --tgt-fmt cs-1.8 params_train.yaml"
    done = shell(tmp_path, line)
    assert (done.returncode, done.stdout) == (0, "Config saved to params_train_to_cs-1.8.yaml\n"), done.stderr
    assert yaml.safe_load((tmp_path / "params_train_to_cs-1.8.yaml").read_text()) == {"model": expected}


def test_list_and_help(tmp_path: Path) -> None:
    listed = shell(tmp_path, f"{TOOL} list")
    assert listed.returncode == 0
    assert "HF GPT2LMHeadModel <-> CS 1.8 GPT2LMHeadModel" in listed.stdout
    assert listed.stdout.startswith("╒")
    assert "--drop-unmatched-keys" in shell(tmp_path, f"{TOOL} convert -h").stdout
