"""Configs between cs-1.7 and cs-1.8."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from cerebras_tensorflow.converter.cli import main
from cerebras_tensorflow.converter.sharded import open_any
from cerebras_tensorflow.converter.torch_file import Leaf, TorchReader
from cerebras_tensorflow.converter.torch_writer import TorchWriter


def convert(folder: Path, name: str, source: str, target: str, model: dict[str, Any]) -> int:
    (folder / "params_train.yaml").write_text(yaml.safe_dump({"model": model, "optimizer": {"learning_rate": 0.1}}))
    words = ["convert-config", "--model", name, "--src-fmt", source, "--tgt-fmt", target]
    return main([*words, str(folder / "params_train.yaml")])


def result(folder: Path, target: str) -> dict[str, Any]:
    content = yaml.safe_load((folder / f"params_train_to_{target}.yaml").read_text())
    assert content["optimizer"] == {"learning_rate": 0.1}
    return content["model"]


@pytest.mark.parametrize("name", ["t5", "transformer"])
@pytest.mark.parametrize(("source", "target"), [("cs-1.7", "cs-1.8"), ("cs-1.8", "cs-1.7")])
def test_the_layer_norm_flag_of_t5_is_inverted(name: str, source: str, target: str, tmp_path: Path) -> None:
    assert convert(tmp_path, name, source, target, {"use_pre_encoder_decoder_layer_norm": True, "d_model": 8}) == 0
    assert result(tmp_path, target) == {"use_pre_encoder_decoder_layer_norm": False, "d_model": 8}


def test_bert_from_1_7_keeps_its_implicit_nonlinearities(tmp_path: Path) -> None:
    assert convert(tmp_path, "bert", "cs-1.7", "cs-1.8", {"encoder_nonlinearity": "relu"}) == 0
    expected = {"encoder_nonlinearity": "relu", "pooler_nonlinearity": "relu", "mlm_nonlinearity": "gelu"}
    assert result(tmp_path, "cs-1.8") == expected


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (
            {"encoder_nonlinearity": "gelu", "pooler_nonlinearity": "tanh"},
            "pooler_nonlinearity was introduced in CS 1.8",
        ),
        ({"encoder_nonlinearity": "gelu", "mlm_nonlinearity": "relu"}, "mlm_nonlinearity was introduced in CS 1.8"),
        ({"encoder_nonlinearity": "relu"}, "mlm_nonlinearity was introduced in CS 1.8"),
        ({}, "lacks encoder_nonlinearity"),
    ],
)
def test_what_cs_1_7_cannot_express_is_refused(
    model: dict[str, Any], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert convert(tmp_path, "bert", "cs-1.8", "cs-1.7", model) == 1
    assert message in capsys.readouterr().err
    assert not (tmp_path / "params_train_to_cs-1.7.yaml").exists()


def test_a_null_nonlinearity_means_that_of_the_encoder(tmp_path: Path) -> None:
    model = {"encoder_nonlinearity": "gelu", "pooler_nonlinearity": None, "mlm_nonlinearity": None}
    assert convert(tmp_path, "bert", "cs-1.8", "cs-1.7", model) == 0
    assert result(tmp_path, "cs-1.7") == model


def convert_weights(folder: Path, name: str, source: str, target: str, weights: Path, *flags: str) -> Path:
    words = ["convert", "--model", name, "--src-fmt", source, "--tgt-fmt", target, "--verify", *flags]
    config = folder / "params_train.yaml"
    assert main([*words, "--config", str(config), "--output-dir", str(folder / "out"), str(weights)]) == 0
    return folder / "out" / f"{weights.stem}_to_{target}.mdl"


def test_optimizer_state_and_counters_stay_between_1_7_and_1_8_and_t5_loses_its_prefix(tmp_path: Path) -> None:
    config = {"use_pre_encoder_decoder_layer_norm": True}
    (tmp_path / "params_train.yaml").write_text(yaml.safe_dump({"model": config}))
    tree = {"model": {"model.w": Leaf("w")}, "optimizer": {"state": {0: {"exp_avg": Leaf("m")}}}, "global_step": 5}
    values = {"w": np.arange(6, dtype=np.float32).reshape(2, 3), "m": np.ones(3, np.float32)}
    with TorchWriter(tmp_path / "checkpoint_5.mdl", tree=tree) as writer:
        for name, value in values.items():
            writer.add(name, value)
    path = convert_weights(tmp_path, "t5", "cs-1.8", "cs-1.7", tmp_path / "checkpoint_5.mdl")
    with TorchReader(path) as reader:
        assert reader.tree["global_step"] == 5
        assert set(reader.tree["model"]) == {"w"}
        np.testing.assert_array_equal(reader.read("model.w"), values["w"])
        np.testing.assert_array_equal(reader.read("optimizer.state.0.exp_avg"), values["m"])
    path = convert_weights(tmp_path, "t5", "cs-1.8", "cs-1.7", tmp_path / "checkpoint_5.mdl", "--export-h5-checkpoint")
    with open_any(path) as stored:
        assert set(stored.names()) == {"model.w", "optimizer.state.0.exp_avg", "global_step"}
        assert stored.read("global_step") == 5


BLOCK = "bert.encoder.layer.0"
OLD_BERT = {
    "bert.embeddings.word_embeddings.weight": "bert.embedding_layer.word_embeddings.weight",
    "bert.embeddings.position_embeddings.weight": "bert.embedding_layer.position_embeddings.weight",
    "bert.embeddings.token_type_embeddings.weight": "bert.embedding_layer.segment_embeddings.weight",
    "bert.embeddings.LayerNorm": "bert.embed_ln_f",
    f"{BLOCK}.attention.self.query": "bert.transformer_encoder.layers.0.self_attn.proj_q_dense_layer",
    f"{BLOCK}.attention.self.key": "bert.transformer_encoder.layers.0.self_attn.proj_k_dense_layer",
    f"{BLOCK}.attention.self.value": "bert.transformer_encoder.layers.0.self_attn.proj_v_dense_layer",
    f"{BLOCK}.attention.output.dense": "bert.transformer_encoder.layers.0.self_attn.proj_output_dense_layer",
    f"{BLOCK}.attention.output.LayerNorm": "bert.transformer_encoder.layers.0.norm1",
    f"{BLOCK}.intermediate.dense": "bert.transformer_encoder.layers.0.ffn.ffn.0.linear_layer",
    f"{BLOCK}.output.dense": "bert.transformer_encoder.layers.0.ffn.ffn.1.linear_layer",
    f"{BLOCK}.output.LayerNorm": "bert.transformer_encoder.layers.0.norm2",
    "classifier": "classifier",
}


def with_kinds(names: dict[str, str]) -> dict[str, str]:
    expanded = {}
    for old, new in names.items():
        is_whole = old.endswith(".weight")
        expanded |= {old: new} if is_whole else {f"{old}.{kind}": f"{new}.{kind}" for kind in ("weight", "bias")}
    return expanded


OLD_TRANSFORMER = with_kinds(
    {
        "encoder_token_embedding.weight": "encoder_embeddings.word_embeddings.weight",
        "decoder_token_embedding.weight": "decoder_embeddings.word_embeddings.weight",
        "encoder.final_layer_norm": "encoder.norm",
        "decoder.final_layer_norm": "decoder.norm",
        **{
            f"{stack}.block.0.layer.{number}.layer_norm": f"{stack}.layers.0.norm{number + 1}"
            for stack, count in (("encoder", 2), ("decoder", 3))
            for number in range(count)
        },
        **{
            f"{stack}.block.0.layer.{number}.{theirs}.{letter}": f"{stack}.layers.0.{ours}.proj_{part}_dense_layer"
            for stack, number, theirs, ours in (
                ("encoder", 0, "SelfAttention", "self_attn"),
                ("decoder", 0, "SelfAttention", "self_attn"),
                ("decoder", 1, "EncDecAttention", "multihead_attn"),
            )
            for letter, part in (("q", "q"), ("k", "k"), ("v", "v"), ("o", "output"))
        },
        **{
            f"{stack}.block.0.layer.{number}.DenseReluDense.{name}": f"{stack}.layers.0.ffn.ffn.{part}.linear_layer"
            for stack, number in (("encoder", 1), ("decoder", 2))
            for part, name in enumerate(("wi", "wo"))
        },
        "lm_head.weight": "lm_head.weight",
    }
) | {
    f"{stack}.absolute_position_embedding": f"{stack}_embeddings.position_embeddings"
    for stack in ("encoder", "decoder")
}
OLD = {
    "bert-summarization": (with_kinds(OLD_BERT), {"encoder_nonlinearity": "gelu", "num_hidden_layers": 1}),
    "transformer": (OLD_TRANSFORMER, {"encoder_num_hidden_layers": 1, "decoder_num_hidden_layers": 1}),
}


@pytest.mark.parametrize("release", ["cs-1.7", "cs-1.8"])
@pytest.mark.parametrize("name", sorted(OLD))
def test_names_of_1_6_are_converted_and_converted_back(name: str, release: str, tmp_path: Path) -> None:
    names, config = OLD[name]
    (tmp_path / "params_train.yaml").write_text(yaml.safe_dump({"model": config}))
    values = {old: np.full([2, 2], number, np.float32) for number, old in enumerate(names)}
    with TorchWriter(tmp_path / "old.mdl", key="model") as writer:
        for old, value in values.items():
            writer.add(old, value)
    path = convert_weights(tmp_path, name, "cs-1.6", release, tmp_path / "old.mdl")
    with open_any(path) as reader:
        assert {key.removeprefix("model.") for key in reader.names()} == set(names.values())
        for old, new in names.items():
            np.testing.assert_array_equal(reader.read(f"model.{new}"), values[old], err_msg=new)
    config_back = tmp_path / "out" / f"params_train_to_{release}.yaml"
    (tmp_path / "params_train.yaml").write_text(config_back.read_text())
    back = convert_weights(tmp_path, name, release, "cs-1.6", path)
    with open_any(back) as reader:
        assert {key: reader.read(key)[0, 0] for key in reader.names()} == {
            f"model.{old}": value[0, 0] for old, value in values.items()
        }
