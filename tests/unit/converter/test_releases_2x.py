"""Names, settings and files of releases 2.0 to 2.9.

tests/integration/checkpoints/test_converter_releases.py runs whole models.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from cerebras_tensorflow.converter.api import Options, convert_checkpoint_from_file, convert_config
from cerebras_tensorflow.converter.cli import main
from cerebras_tensorflow.converter.hf_folder import HfFolderWriter
from cerebras_tensorflow.converter.layouts import FALCON_PACKED
from cerebras_tensorflow.converter.models import MODELS
from cerebras_tensorflow.converter.rules import CS, ConfigConversionError
from cerebras_tensorflow.converter.sharded import open_any
from cerebras_tensorflow.converter.torch_writer import TorchWriter
from cerebras_tensorflow.errors import CheckpointError
from cerebras_tensorflow.saver.interface import TensorEntry
from cerebras_tensorflow.saver.safetensors_file import SafetensorsWriter

GPT2 = {"vocab_size": 9, "n_embd": 4, "n_head": 2, "n_layer": 1, "n_positions": 6}
LLAMA = {"vocab_size": 9, "hidden_size": 8, "num_attention_heads": 4, "num_hidden_layers": 1, "intermediate_size": 12}
FALCON = {"vocab_size": 9, "hidden_size": 8, "num_attention_heads": 4, "num_hidden_layers": 1}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 6}


def names(model: str, config: dict[str, Any]) -> set[str]:
    """Return the names since release 2.1."""
    return {tensor.since_2_1().places[CS].name for tensor in MODELS[model].tensors(config) if CS in tensor.places}


def test_release_2_1_moved_the_position_tables() -> None:
    assert "embedding_layer.position_embeddings.embed.weight" in names("gpt2", GPT2 | {"tie_word_embeddings": True})
    sizes = {"num_layers": 1, "num_decoder_layers": 1, "tie_word_embeddings": True, "feed_forward_proj": "gated-silu"}
    t5 = names("t5", sizes)
    for stack in ("encoder", "decoder"):
        assert f"{stack}_embeddings.position_embed_helper.relative_attention_bias.weight" in t5
        assert f"{stack}.layers.0.ffn.ffn.0.linear_layer_for_glu.weight" in t5
    bert = names("bert", {"num_hidden_layers": 1})
    assert "bert_encoder.embedding_layer.position_embeddings.embed.weight" in bert


@pytest.mark.parametrize(
    ("model", "config", "target", "expected", "absent"),
    [
        ("gpt2", GPT2, "cs-2.0", {"use_bias_in_output": False, "mixed_precision": True}, {"name"}),
        ("gpt2", GPT2, "cs-2.4", {"name": "gpt2"}, {"mixed_precision"}),
        ("gptj", GPT2 | {"rotary": True}, "cs-2.9", {"use_untied_layer_norm": False, "name": "gptj"}, set()),
        ("codegen", GPT2 | {"n_head": 4}, "cs-2.9", {"name": "gptj"}, set()),
        ("llama", LLAMA, "cs-1.9", {"use_rms_norm": True, "use_position_embedding": True}, {"norm_type"}),
        ("llama", LLAMA, "cs-2.0", {"norm_type": "rmsnorm"}, {"use_rms_norm", "rope_theta", "attention_module"}),
        ("llama", LLAMA, "cs-2.1", {"pos_scaling_factor": 1.0, "rope_theta": 10000.0}, {"use_position_embedding"}),
        (
            "llama",
            LLAMA | {"num_key_value_heads": 2},
            "cs-2.0",
            {"attention_module": "multiquery_attention", "extra_attention_params": {"num_kv_groups": 2}},
            set(),
        ),
        (
            "llama",
            LLAMA | {"rope_scaling": LLAMA3},
            "cs-2.3",
            {
                "pos_scaling_type": "llama3",
                "pos_scaling_factor": 8.0,
                "pos_scaling_extra_args": {"low_freq_factor": 1.0, "high_freq_factor": 4.0},
            },
            set(),
        ),
        ("llama-headless", LLAMA, "cs-2.9", {"name": "llama"}, set()),
        (
            "mistral",
            LLAMA | {"sliding_window": 7, "num_key_value_heads": 2},
            "cs-2.1",
            {"attention_sliding_window_length": 7},
            set(),
        ),
        ("bert", LLAMA, "cs-2.0", {"enable_vts": False}, {"freeze_ffn_bias_in_glu"}),
        ("bert", LLAMA, "cs-2.3", {"freeze_ffn_bias_in_glu": False}, {"enable_vts"}),
        ("t5", {"feed_forward_proj": "gated-gelu"}, "cs-2.0", {"encoder_nonlinearity": "geglu"}, {"use_t5_layer_norm"}),
        (
            "t5",
            {"feed_forward_proj": "relu"},
            "cs-2.2",
            {"norm_type": "rmsnorm", "decoder_nonlinearity": "relu"},
            set(),
        ),
        (
            "falcon",
            FALCON | {"new_decoder_architecture": True, "num_kv_heads": 2},
            "cs-2.1",
            {
                "use_untied_layer_norm": True,
                "extra_attention_params": {"num_kv_groups": 2},
                "filter_size": 32,
                "rotary_dim": 2,
                "use_ffn_bias": False,
                "loss_scaling": "num_tokens",
            },
            set(),
        ),
    ],
)
def test_settings_follow_the_release_and_convert_back(
    model: str, config: dict[str, Any], target: str, expected: dict[str, Any], absent: set[str]
) -> None:
    section = convert_config(model, "hf", target, config)["model"]
    assert expected.items() <= section.items() and not absent & set(section)
    back = convert_config(model, target, "hf", section)
    if "rope_scaling" in config:
        assert back.pop("rope_scaling") == config["rope_scaling"]
    assert {key: value for key, value in config.items() if key != "rope_scaling"}.items() <= back.items()


@pytest.mark.parametrize(
    ("model", "config", "target", "message"),
    [
        ("llama", LLAMA | {"num_key_value_heads": 2}, "cs-1.9", "num_key_value_heads=2. Only 4 is supported"),
        ("llama", LLAMA | {"num_key_value_heads": 3}, "cs-2.0", "must divide num_attention_heads=4"),
        ("llama", LLAMA | {"rope_theta": 5e5}, "cs-2.0", "rope_theta=500000.0. Only 10000.0"),
        ("falcon", FALCON | {"rope_theta": 5e5}, "cs-2.0", "rope_theta=500000.0. Only 10000.0"),
        ("llama", LLAMA | {"rope_scaling": LLAMA3}, "cs-2.2", "rope_type=llama3. It was introduced in cs-2.3"),
        ("llama", LLAMA | {"rope_scaling": YARN | {"beta_fast": 3}}, "cs-2.3", "beta_fast of rope_type=yarn"),
        ("llama", LLAMA | {"rope_scaling": {"type": "su"}}, "cs-2.9", "rope_type=su. Only default, linear"),
        ("llama", LLAMA | {"rope_scaling": YARN}, "tf", "rope_type=yarn. Only default"),
        ("llama", LLAMA | {"head_dim": 3}, "cs-2.9", "head_dim=3"),
        (
            "gpt-neox",
            FALCON | {"rope_parameters": {"rope_type": "linear", "factor": 2.0}},
            "cs-2.1",
            "rope_type=linear",
        ),
        ("t5", {"feed_forward_proj": "gated-gelu"}, "cs-1.8", "gated-gelu. cs-1.8 has no feed-forward with a gate"),
        ("t5", {"feed_forward_proj": "gated-gelu"}, "tf", "tf has no feed-forward with a gate"),
        ("t5", {"feed_forward_proj": "gated-tanh"}, "cs-2.9", "only gated-silu, gated-relu, gated-gelu"),
        ("falcon", FALCON | {"alibi": True}, "cs-2.1", "alibi=True. Only False"),
        ("falcon", FALCON | {"parallel_attn": False}, "cs-2.1", "parallel_attn=False. Only True"),
        ("falcon", FALCON | {"ffn_hidden_size": 9}, "cs-2.1", "ffn_hidden_size=9"),
    ],
)
def test_a_config_that_a_release_cannot_hold_is_refused(
    model: str, config: dict[str, Any], target: str, message: str
) -> None:
    with pytest.raises(ConfigConversionError, match=message):
        convert_config(model, "hf", target, config)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"use_ffn_bias": True}, "one setting for all biases"),
        ({"filter_size": 9}, "filter_size=9. Only 32"),
        ({"use_untied_layer_norm": False}, "num_kv_groups=2 and use_untied_layer_norm=False"),
    ],
)
def test_a_cs_config_that_falcon_cannot_hold_is_refused(changes: dict[str, Any], message: str) -> None:
    config = FALCON | {"new_decoder_architecture": True, "num_kv_heads": 2}
    section = convert_config("falcon", "hf", "cs-2.1", config)["model"]
    with pytest.raises(ConfigConversionError, match=message):
        convert_config("falcon", "cs-2.1", "hf", section | changes)


@pytest.mark.parametrize(
    ("key", "value", "neutral"), [("mup_base_hidden_size", 256, None), ("embeddings_scale", 10.0, 1.0)]
)
def test_a_model_with_scales_of_mup_is_not_converted_to_other_logits(key: str, value: object, neutral: object) -> None:
    section = convert_config("gpt2", "hf", "cs-2.3", GPT2)["model"]
    with pytest.raises(ConfigConversionError, match=f"{key}={value}. It is a scale of muP"):
        convert_config("gpt2", "cs-2.3", "hf", section | {key: value})
    assert convert_config("gpt2", "cs-2.3", "hf", section | {key: neutral})["n_embd"] == GPT2["n_embd"]


def test_falcon_rows_are_taken_by_group() -> None:
    config = {"num_kv_heads": 2, "head_size": 2, "rotary_dim": 2}
    packed = np.arange(2 * 4 * 2)[:, None] * np.ones([1, 3])  # each group: two queries, a key, a value
    parts = [FALCON_PACKED.split(packed, part, config) for part in range(3)]
    assert [part[:, 0].tolist() for part in parts] == [[0, 1, 2, 3, 8, 9, 10, 11], [4, 5, 12, 13], [6, 7, 14, 15]]
    np.testing.assert_array_equal(FALCON_PACKED.join(parts, config), packed)


def write_gpt2(folder: Path) -> tuple[str, str]:
    folder.mkdir()
    shapes = {
        "wte.weight": [9, 4],
        "wpe.weight": [6, 4],
        "h.0.attn.c_attn.weight": [4, 12],
        "h.0.attn.c_attn.bias": [12],
    }
    shapes |= {"h.0.attn.c_proj.weight": [4, 4], "h.0.attn.c_proj.bias": [4], "h.0.mlp.c_fc.weight": [4, 16]}
    shapes |= {"h.0.mlp.c_fc.bias": [16], "h.0.mlp.c_proj.weight": [16, 4], "h.0.mlp.c_proj.bias": [4]}
    shapes |= {f"{norm}.{kind}": [4] for norm in ("h.0.ln_1", "h.0.ln_2", "ln_f") for kind in ("weight", "bias")}
    rng = np.random.default_rng(5)
    with TorchWriter(folder / "pytorch_model.bin") as writer:
        for name, shape in shapes.items():
            writer.add(f"transformer.{name}", rng.normal(size=shape).astype(np.float32))
    (folder / "config.json").write_text(json.dumps(GPT2))
    return str(folder / "pytorch_model.bin"), str(folder / "config.json")


@pytest.mark.parametrize("is_safetensors", [False, True])
def test_from_2_0_on_hf_output_is_a_folder_of_shards(tmp_path: Path, is_safetensors: bool) -> None:
    given, config = write_gpt2(tmp_path / "given")
    path, params = convert_checkpoint_from_file("gpt2", "hf", "cs-2.3", given, config, Options(str(tmp_path)))
    # Since 2.3 the model's settings are inside those of the trainer.
    section = yaml.safe_load(Path(params).read_text())
    Path(params).write_text(yaml.safe_dump({"trainer": {"init": section}}))
    options = Options(str(tmp_path), export_safetensors=is_safetensors, verify=True, hf_shard_bytes=300)
    index, config = convert_checkpoint_from_file("gpt2", "cs-2.3", "hf", path, params, options)
    folder = tmp_path / "pytorch_model_to_cs-2.3_to_hf"
    stem, suffix = ("model", "safetensors") if is_safetensors else ("pytorch_model", "bin")
    assert (index, config) == (str(folder / f"{stem}.{suffix}.index.json"), str(folder / "config.json"))
    content = json.loads(Path(index).read_text())
    shards = set(content["weight_map"].values())
    assert shards == {f"{stem}-{k:05d}-of-{len(shards):05d}.{suffix}" for k in range(1, len(shards) + 1)}
    assert {path.name for path in folder.iterdir()} == {*shards, Path(index).name, "config.json"}
    with open_any(given) as first, open_any(folder) as second:
        assert content["metadata"]["total_size"] == sum(second.entry(name).num_bytes for name in second.names())
        for name in first.names():
            np.testing.assert_array_equal(first.read(name), second.read(name))
    with pytest.raises(CheckpointError, match="exists"):
        convert_checkpoint_from_file("gpt2", "cs-2.3", "hf", path, params, options)


def test_a_failed_write_of_a_folder_leaves_nothing(tmp_path: Path) -> None:
    entries = {"w": TensorEntry(np.dtype("f4"), (2,), 8), "v": TensorEntry(np.dtype("f4"), (2,), 8)}
    with (
        pytest.raises(ValueError, match="chunks hold"),
        HfFolderWriter(tmp_path / "out", entries, 8, True, {}) as writer,
    ):
        writer.add("w", np.ones(2, np.float32))
        writer.add_chunks("v", np.float32, (2,), [b"1234"])
    assert list(tmp_path.iterdir()) == []


def test_a_folder_whose_config_cannot_be_written_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(TypeError):
        HfFolderWriter(tmp_path / "out", {}, 8, True, {"no JSON": object()})
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_conversion_left_is_removed(tmp_path: Path) -> None:
    (tmp_path / ".out.7.partial").mkdir()
    (tmp_path / ".out.7.partial" / "config.json").write_text("{}")
    with HfFolderWriter(tmp_path / "out", {}, 8, True, {}):
        assert not (tmp_path / ".out.7.partial").exists()
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_safetensors_file_whose_header_size_looks_like_a_pickle_is_no_torch_file(tmp_path: Path) -> None:
    for length in range(60, 130):
        path = tmp_path / "s.safetensors"
        with SafetensorsWriter(path, {"w" * length: TensorEntry(np.dtype("<i2"), (2,), 4)}) as writer:
            writer.add("w" * length, np.array([1, 2], "<i2"))
        if path.read_bytes()[0] == 0x80:
            break
    else:
        pytest.fail("no header of 128 bytes")
    with open_any(path) as reader:
        assert reader.names() == ["w" * length]


def test_list_shows_the_releases_since_2_1_in_one_row(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "mistral"]) == 0
    printed = capsys.readouterr().out
    assert printed.count("mistral") == 2 and printed.count("cs-2.1 to cs-2.9") == 6


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (["--model", "mistrall", "--tgt-fmt", "cs-2.1"], "mistral"),
        (["--model", "llama", "--tgt-fmt", "cs-2.10"], "cs-2.1"),
    ],
)
def test_an_unknown_model_or_release_names_a_near_one(
    words: list[str], meant: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["convert-config", *words, "--src-fmt", "hf", "config.json"]) == 1
    assert f"did you mean '{meant}'" in capsys.readouterr().err
