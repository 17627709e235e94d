"""convert_checkpoint: its messages, what it refuses, and conversions small enough to check by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from cerebras_tensorflow.converter.cli import main
from cerebras_tensorflow.converter.models import MODELS
from cerebras_tensorflow.converter.sharded import open_any, stem
from cerebras_tensorflow.converter.torch_writer import TorchWriter
from cerebras_tensorflow.errors import CheckpointError
from cerebras_tensorflow.saver.checkpoint_writer import open_writer

GPT2_CONFIG = {"vocab_size": 11, "n_embd": 4, "n_head": 2, "n_layer": 1, "n_positions": 6}


def gpt2_weights() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(5)
    shapes = {
        "wte.weight": [11, 4],
        "wpe.weight": [6, 4],
        "h.0.ln_1.weight": [4],
        "h.0.ln_1.bias": [4],
        "h.0.attn.c_attn.weight": [4, 12],
        "h.0.attn.c_attn.bias": [12],
        "h.0.attn.c_proj.weight": [4, 4],
        "h.0.attn.c_proj.bias": [4],
        "h.0.ln_2.weight": [4],
        "h.0.ln_2.bias": [4],
        "h.0.mlp.c_fc.weight": [4, 16],
        "h.0.mlp.c_fc.bias": [16],
        "h.0.mlp.c_proj.weight": [16, 4],
        "h.0.mlp.c_proj.bias": [4],
        "ln_f.weight": [4],
        "ln_f.bias": [4],
    }
    return {f"transformer.{name}": rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}


@pytest.fixture
def source(tmp_path: Path) -> Path:
    write(tmp_path, gpt2_weights(), GPT2_CONFIG)
    return tmp_path


def write(folder: Path, weights: dict[str, np.ndarray], config: dict[str, Any]) -> None:
    with TorchWriter(folder / "pytorch_model.bin") as writer:
        for name, value in weights.items():
            writer.add(name, value)
    (folder / "config.json").write_text(json.dumps(config))


def convert(folder: Path, target: str = "cs-1.8", *flags: str, model: str = "gpt2") -> int:
    words = ["convert", "--model", model, "--src-fmt", "hf", "--tgt-fmt", target]
    words += ["--config", str(folder / "config.json"), "--output-dir", str(folder / "out"), *flags]
    return main([*words, str(folder / "pytorch_model.bin")])


def test_names_values_and_messages_of_a_conversion(source: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert convert(source, "cs-1.8", "--verify") == 0
    out = source / "out"
    printed = capsys.readouterr().out
    assert printed == (
        f"Checkpoint saved to {out}/pytorch_model_to_cs-1.8.mdl\nConfig saved to {out}/config_to_cs-1.8.yaml\n"
    )
    weights = gpt2_weights()
    block = "model.transformer_decoder.layers.0"
    with open_any(out / "pytorch_model_to_cs-1.8.mdl") as reader:
        packed = weights["transformer.h.0.attn.c_attn.weight"]
        for part, letter in enumerate("qkv"):
            part_weight = reader.read(f"{block}.self_attn.proj_{letter}_dense_layer.weight")
            np.testing.assert_array_equal(part_weight, packed[:, 4 * part : 4 * part + 4].T)
        fc_in = reader.read(f"{block}.ffn.ffn.0.linear_layer.weight")
        np.testing.assert_array_equal(fc_in, weights["transformer.h.0.mlp.c_fc.weight"].T)
        # CS stores the last norm twice and, if embeddings are tied, also the table as its output layer.
        np.testing.assert_array_equal(reader.read("model.ln_f.bias"), weights["transformer.ln_f.bias"])
        np.testing.assert_array_equal(
            reader.read("model.transformer_decoder.norm.bias"), weights["transformer.ln_f.bias"]
        )
        np.testing.assert_array_equal(reader.read("model.lm_head.weight"), weights["transformer.wte.weight"])
    config = yaml.safe_load((out / "config_to_cs-1.8.yaml").read_text())["model"]
    assert config["filter_size"] == 16  # n_inner absent: four times the width
    assert config["share_embedding_weights"] is True
    assert config["mixed_precision"] is True


def test_a_tensor_without_a_rule_is_refused_unless_dropped(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    write(tmp_path, gpt2_weights() | {"transformer.extra": np.zeros(3, np.float32)}, GPT2_CONFIG)
    assert convert(tmp_path) == 1
    captured = capsys.readouterr()
    assert captured.err.startswith(
        "AssertionError: Unable to match all keys. If you want to proceed by dropping keys that couldn't matched, "
        "rerun with --drop-unmatched-keys"
    )
    assert "Conversion failed." in captured.out
    assert "Key not matched: transformer.extra" in caplog.text
    assert not list((tmp_path / "out").glob("*")) if (tmp_path / "out").exists() else True
    assert convert(tmp_path, "cs-1.8", "--drop-unmatched-keys") == 0
    assert "proceeding even though some keys weren't matched" in caplog.text


def test_tensors_under_a_key_model_are_found(source: Path) -> None:
    with TorchWriter(source / "pytorch_model.bin", key="model") as writer:
        for name, value in gpt2_weights().items():
            writer.add(name, value)
    assert convert(source) == 0
    with open_any(source / "out" / "pytorch_model_to_cs-1.8.mdl") as reader:
        table = reader.read("model.embedding_layer.word_embeddings.weight")
    np.testing.assert_array_equal(table, gpt2_weights()["transformer.wte.weight"])


def test_a_missing_tensor_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    weights = gpt2_weights()
    del weights["transformer.h.0.mlp.c_fc.bias"]
    write(tmp_path, weights, GPT2_CONFIG)
    assert convert(tmp_path) == 1
    assert "no tensor 'h.0.mlp.c_fc.bias', which gpt2 needs" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"reorder_and_upcast_attn": True},
            "Can't convert config with reorder_and_upcast_attn=True. Only False is supported.",
        ),
        ({"n_embd": None}, "the config lacks n_embd"),
    ],
)
def test_a_config_that_cannot_be_expressed_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], change: dict[str, Any], message: str
) -> None:
    write(tmp_path, gpt2_weights(), GPT2_CONFIG | change)
    assert convert(tmp_path) == 1
    assert f"ConfigConversionError: {message}" in capsys.readouterr().err


def test_an_unknown_model_or_format_pair_prints_the_supported_ones(
    source: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert convert(source, model="gpt5") == 1
    printed = capsys.readouterr().out
    assert printed.startswith("The following models are supported:\n\n")
    assert printed.endswith("\n\nConversion failed.\n")
    assert convert(source, "cs-1.6") == 1
    printed, told = capsys.readouterr()
    assert printed.startswith("The following converters are supported:\n\n")
    assert told == "convert_checkpoint: error: cannot convert gpt2 from hf to cs-1.6\n"


def test_a_config_that_is_not_json_is_refused(source: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (source / "config.json").write_text("model: {}")
    assert convert(source) == 1
    assert "is not JSON, as a config of hf must be" in capsys.readouterr().err


@pytest.mark.parametrize("name", sorted(MODELS))
def test_list_has_every_model(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", name]) == 0
    printed = capsys.readouterr().out
    assert MODELS[name].cs_class in printed
    assert (MODELS[name].hf_class or "CS 1.6") in printed


def test_list_reports_an_unknown_model(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "gpt5"]) == 1
    assert capsys.readouterr().out.startswith("The model gpt5 is not supported.")


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    (tmp_path / "model-00001-of-00002.bin").write_bytes(b"")
    with pytest.raises(CheckpointError, match=r"1 of 2 shards are missing, first .*00002-of-00002"):
        open_any(tmp_path / "model-00001-of-00002.bin")


def test_the_index_of_shards_cannot_lead_out_of_its_folder(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    with TorchWriter(tmp_path / "x.bin") as writer:
        writer.add("w", np.zeros(2, np.float32))
    (tmp_path / "a" / "m.bin.index.json").write_text(json.dumps({"weight_map": {"w": "../x.bin"}}))
    with pytest.raises(CheckpointError, match=r"a/x\.bin"):
        open_any(tmp_path / "a" / "m.bin.index.json")


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("a/pytorch_model.bin", "a/pytorch_model"),
        ("a/model-00001-of-00003.safetensors", "a/model"),
        ("a/model.safetensors.index.json", "a/model"),
        ("a/model.ckpt-100", "a/model.ckpt-100"),
        ("checkpoint_10.mdl", "checkpoint_10"),
    ],
)
def test_the_stem_of_a_path_leaves_out_shards_and_formats(path: str, expected: str) -> None:
    assert stem(path) == expected


def test_pruned_weights_of_a_sparse_run_become_zero_in_hugging_face(source: Path) -> None:
    assert convert(source) == 0
    middle = source / "out" / "pytorch_model_to_cs-1.8.mdl"
    with open_any(middle) as reader:
        values = {name.removeprefix("model."): reader.read(name) for name in reader.names()}
    values["lm_head.weight"] = values["lm_head.weight"].copy()
    values["lm_head.weight"][0, 0] = np.nan
    with TorchWriter(source / "sparse.mdl", key="model") as writer:
        for name, value in values.items():
            writer.add(name, value)
    params = yaml.safe_load((source / "out" / "config_to_cs-1.8.yaml").read_text()) | {"sparsity": {"type": "topk"}}
    (source / "params.yaml").write_text(yaml.safe_dump(params))
    words = ["convert", "--model", "gpt2", "--src-fmt", "cs-1.8", "--tgt-fmt", "hf", "--config"]
    assert main([*words, str(source / "params.yaml"), str(source / "sparse.mdl")]) == 0
    with open_any(source / "sparse_to_hf.bin") as reader:
        head = reader.read("lm_head.weight")
    assert head[0, 0] == 0.0
    np.testing.assert_array_equal(head.ravel()[1:], values["lm_head.weight"].ravel()[1:])


def test_a_tied_table_is_read_from_the_output_layer_if_stored_only_there(source: Path) -> None:
    assert convert(source) == 0
    with open_any(source / "out" / "pytorch_model_to_cs-1.8.mdl") as reader:
        values = {name.removeprefix("model."): reader.read(name) for name in reader.names()}
    del values["embedding_layer.word_embeddings.weight"], values["transformer_decoder.norm.bias"]
    with TorchWriter(source / "one.mdl", key="model") as writer:
        for name, value in values.items():
            writer.add(name, value)
    words = ["convert", "--model", "gpt2", "--src-fmt", "cs-1.8", "--tgt-fmt", "hf", "--config"]
    assert main([*words, str(source / "out" / "config_to_cs-1.8.yaml"), str(source / "one.mdl")]) == 0
    with open_any(source / "one_to_hf.bin") as reader:
        np.testing.assert_array_equal(reader.read("transformer.wte.weight"), values["lm_head.weight"])
        np.testing.assert_array_equal(reader.read("transformer.ln_f.bias"), values["ln_f.bias"])


@pytest.mark.parametrize(
    ("flags", "name"), [((), "model_to_tf.ckpt"), (("--export-h5-checkpoint",), "model_to_tf.hdf5")]
)
def test_our_checkpoints_are_tensorflow_or_hdf5_either_way(flags: tuple[str, ...], name: str, source: Path) -> None:
    assert convert(source, "tf", "--verify", *flags) == 0
    written = source / "out" / f"pytorch_{name}"
    with open_any(written) as reader:
        assert "decoder/ffn/dense_layer_1/dense_layer_1/kernel" in reader
    words = ["convert", "--model", "gpt2", "--src-fmt", "tf", "--tgt-fmt", "hf", "--output-dir", str(source / "back")]
    assert main([*words, "--config", str(source / "out" / "config_to_tf.yaml"), str(written)]) == 0
    (back,) = (source / "back").glob("*.bin")
    with open_any(back) as reader:
        weights = gpt2_weights()
        assert set(reader.names()) == set(weights) | {"lm_head.weight"}
        for key, value in weights.items():
            np.testing.assert_array_equal(reader.read(key), value)


def test_an_unknown_command_prints_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["transform", "--model", "gpt2"]) == 1
    assert capsys.readouterr().out.startswith("Unrecognized command\nusage: convert_checkpoint")


@pytest.mark.parametrize("content", ["[]", "{}", '{"weight_map": [1]}', '{"weight_map": {"w": 1}}', "no JSON"])
def test_a_malformed_shard_index_is_refused(content: str, tmp_path: Path) -> None:
    (tmp_path / "m.bin.index.json").write_text(content)
    with pytest.raises(CheckpointError, match="not the index of a sharded checkpoint"):
        open_any(tmp_path / "m.bin.index.json")


@pytest.mark.parametrize("command", ["convert", "convert-config"])
def test_debug_prints_the_conversion_of_settings(
    command: str, source: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [
        "--model",
        "gpt2",
        "--src-fmt",
        "hf",
        "--tgt-fmt",
        "cs-1.8",
        "--debug",
        "--output-dir",
        str(source / "out"),
    ]
    config = str(source / "config.json")
    files = ["--config", config, str(source / "pytorch_model.bin")] if command == "convert" else [config]
    assert main([command, *words, *files]) == 0
    assert "Matched n_embd -> hidden_size action: None\n" in capsys.readouterr().out


def test_debug_prints_the_conversion_of_names(source: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert convert(source, "cs-1.8", "--debug") == 0
    printed = capsys.readouterr().out
    assert "Matched transformer.ln_f.bias -> ln_f.bias action: None\n" in printed
    packed = (
        "Matched transformer.h.0.attn.c_attn.bias -> transformer_decoder.layers.0.self_attn.proj_q_dense_layer.bias"
    )
    assert f"{packed} action: split into thirds\n" in printed


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["convert-config", "--model", "gtpj", "--src-fmt", "hf", "--tgt-fmt", "tf", "none"], "did you mean 'gptj'?"),
        (
            ["convert-config", "--model", "gptj", "--src-fmt", "hf", "--tgt-fmt", "cs1.8", "none"],
            "unknown format 'cs1.8'; did you mean 'cs-1.8'?",
        ),
        (["convret"], "did you mean 'convert'?"),
    ],
)
def test_a_mistyped_word_gets_a_suggestion_before_files_are_read(
    words: list[str], hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 1
    assert hint in capsys.readouterr().err


def test_a_mistyped_option_gets_a_suggestion(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["convert-config", "--model", "gptj", "--src-fmt", "hf", "--tgt-fmt", "tf", "--outptu-dir", "x", "none"])
    assert end.value.code == 2
    assert "did you mean '--output-dir'?" in capsys.readouterr().err


def test_options_are_taken_with_hyphens_and_underscores(source: Path) -> None:
    words = ["convert-config", "--model", "gpt2", "--src_fmt", "hf", "--tgt-fmt", "cs-1.8", "--output_dir"]
    assert main([*words, str(source / "out"), str(source / "config.json")]) == 0


def test_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["--version"])
    assert end.value.code == 0 and capsys.readouterr().out.startswith("convert_checkpoint ")


def test_an_output_folder_that_is_a_file_gives_a_one_line_error(
    source: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (source / "out").write_text("")
    assert convert(source) == 1
    error = capsys.readouterr().err
    assert error.startswith("convert_checkpoint: error: ") and "out" in error and error.count("\n") == 1


def test_masks_of_sparse_weights_move_with_their_weights(source: Path) -> None:
    assert convert(source, "tf") == 0
    out = source / "out"
    (ours,) = (stem(str(path)) for path in out.glob("*.index"))
    with open_any(ours) as reader:
        values = {name: reader.read(name) for name in reader.names()}
    kernel = next(name for name in values if name.endswith("kernel") and values[name].shape == (4, 16))
    mask = np.random.default_rng(0).random((4, 16)) < 0.5
    with open_writer(str(source / "sparse")) as writer:
        for name, value in {**values, f"{kernel}_mask": mask}.items():
            writer.add(name, value)
    words = ["convert", "--model", "gpt2", "--verify", "--config", str(out / "config_to_tf.yaml")]
    there = ["--src-fmt", "tf", "--tgt-fmt", "cs-1.8", "--output-dir", str(source / "cs"), str(source / "sparse")]
    assert main([*words, *there]) == 0
    (theirs,) = (source / "cs").glob("*.mdl")
    with open_any(str(theirs)) as reader:
        (name,) = (name for name in reader.names() if name.endswith("_mask"))
        assert name.removesuffix("_mask") in reader
        assert reader.read(name).dtype == bool
        np.testing.assert_array_equal(reader.read(name), mask.T)
    words[-1] = str(next((source / "cs").glob("*.yaml")))
    back = ["--src-fmt", "cs-1.8", "--tgt-fmt", "tf", "--output-dir", str(source / "back"), str(theirs)]
    assert main([*words, *back]) == 0
    (again,) = (stem(str(path)) for path in (source / "back").glob("*.index"))
    with open_any(again) as reader:
        np.testing.assert_array_equal(reader.read(f"{kernel}_mask"), mask)
    to_hf = ["--src-fmt", "cs-1.8", "--tgt-fmt", "hf", "--output-dir", str(source / "hf"), str(theirs)]
    assert main([*words, *to_hf]) == 0
