"""HF to cs-1.8: exactly the names, shapes and yaml keys of the public Model Zoo's models; layouts element by element.

We wrote these lists by hand from the public code, independently of the converter's tables.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from cerebras_tensorflow.converter.api import Options, convert_checkpoint_from_file, convert_config
from cerebras_tensorflow.converter.layouts import CODEGEN_PACKED, HALVES, NEOX_PACKED, THIRDS
from cerebras_tensorflow.converter.rules import ConfigConversionError
from cerebras_tensorflow.converter.sharded import open_any
from cerebras_tensorflow.converter.torch_writer import TorchWriter

V, H, F, P, N = 11, 8, 32, 6, 4
BLOCK = "transformer_decoder.layers.0"


def both(name: str, weight: list[int], bias: list[int] | None = None) -> dict[str, list[int]]:
    return {f"{name}.weight": weight, f"{name}.bias": bias if bias is not None else weight[:1]}


def attention(*, has_bias: bool) -> dict[str, list[int]]:
    names = [f"{BLOCK}.self_attn.proj_{part}_dense_layer" for part in ("q", "k", "v", "output")]
    converted = [both(name, [H, H]) if has_bias else {f"{name}.weight": [H, H]} for name in names]
    return {name: shape for part in converted for name, shape in part.items()}


FFN = both(f"{BLOCK}.ffn.ffn.0.linear_layer", [F, H]) | both(f"{BLOCK}.ffn.ffn.1.linear_layer", [H, F])
WORDS = {"embedding_layer.word_embeddings.weight": [V, H]}
POSITIONS = {"embedding_layer.position_embeddings.weight": [P, H]}
LAST = both("transformer_decoder.norm", [H]) | both("ln_f", [H])
NORMS = both(f"{BLOCK}.norm1", [H]) | both(f"{BLOCK}.norm3", [H])
LM_HEAD = {"lm_head.weight": [V, H]}

HF_GPT = {"vocab_size": V, "n_embd": H, "n_head": N, "n_layer": 1, "n_positions": P, "n_inner": None}
HF_GPT |= {"activation_function": "gelu_new", "embd_pdrop": 0.1, "attn_pdrop": 0.1, "resid_pdrop": 0.1}
HF_GPT |= {"layer_norm_epsilon": 1e-5, "initializer_range": 0.02}
GPT_BLOCK = {"h.0.ln_1": [H], "h.0.attn.c_proj": [H, H], "h.0.mlp.c_fc": [H, F], "h.0.mlp.c_proj": [F, H]}
HF_NEOX = {"vocab_size": V, "hidden_size": H, "num_attention_heads": N, "num_hidden_layers": 1}
HF_NEOX |= {"intermediate_size": F, "max_position_embeddings": P, "rotary_pct": 1.0, "rotary_emb_base": 10000}
HF_NEOX |= {"hidden_act": "gelu", "layer_norm_eps": 1e-5, "initializer_range": 0.02, "tie_word_embeddings": False}
HF_GPTJ = HF_GPT | {"rotary": True, "rotary_dim": 2, "tie_word_embeddings": False}

CS_SIZES = {"vocab_size": V, "hidden_size": H, "num_heads": N, "num_hidden_layers": 1, "max_position_embeddings": P}
CS_SIZES |= {"dropout_rate": 0.1}

GPT_YAML = {"vocab_size", "hidden_size", "num_heads", "num_hidden_layers", "max_position_embeddings", "filter_size"}
GPT_YAML |= {"nonlinearity", "embedding_dropout_rate", "attention_dropout_rate", "layer_norm_epsilon"}
GPT_YAML |= {"initializer_range", "share_embedding_weights", "mixed_precision"}
J_YAML = GPT_YAML | {"residual_dropout_rate", "rotary_dim", "use_ffn_bias_in_attention", "attention_type"}
J_YAML |= {"use_projection_bias_in_attention", "use_ffn_bias", "use_bias_in_output"}

HF_LLAMA = {"vocab_size": V, "hidden_size": H, "num_attention_heads": N, "num_hidden_layers": 1}
HF_LLAMA |= {"intermediate_size": F, "max_position_embeddings": P, "hidden_act": "silu", "rms_norm_eps": 1e-6}
HF_LLAMA |= {"initializer_range": 0.02, "tie_word_embeddings": False}
LLAMA_TENSORS = {
    "model.embed_tokens.weight": [V, H],
    **{f"model.layers.0.self_attn.{part}_proj.weight": [H, H] for part in ("q", "k", "v", "o")},
    "model.layers.0.self_attn.rotary_emb.inv_freq": [H // N // 2],
    "model.layers.0.mlp.gate_proj.weight": [F, H],
    "model.layers.0.mlp.up_proj.weight": [F, H],
    "model.layers.0.mlp.down_proj.weight": [H, F],
    "model.layers.0.input_layernorm.weight": [H],
    "model.layers.0.post_attention_layernorm.weight": [H],
    "model.norm.weight": [H],
    "lm_head.weight": [V, H],
}
LLAMA_CS = {
    "embedding_layer.word_embeddings.weight": [V, H],
    f"{BLOCK}.self_attn.proj_q_dense_layer.weight": [H, H],
    f"{BLOCK}.self_attn.proj_k_dense_layer.weight": [H, H],
    f"{BLOCK}.self_attn.proj_v_dense_layer.weight": [H, H],
    f"{BLOCK}.self_attn.proj_output_dense_layer.weight": [H, H],
    f"{BLOCK}.norm1.weight": [H],
    f"{BLOCK}.norm3.weight": [H],
    f"{BLOCK}.ffn.ffn.0.linear_layer.weight": [F, H],
    f"{BLOCK}.ffn.ffn.0.linear_layer_for_glu.weight": [F, H],
    f"{BLOCK}.ffn.ffn.1.linear_layer.weight": [H, F],
    "transformer_decoder.norm.weight": [H],
    "ln_f.weight": [H],
    "lm_head.weight": [V, H],
}
LLAMA_SECTION = {
    "vocab_size": V,
    "hidden_size": H,
    "num_hidden_layers": 1,
    "num_heads": N,
    "filter_size": F,
    "max_position_embeddings": P,
    "layer_norm_epsilon": 1e-6,
    "initializer_range": 0.02,
    "share_embedding_weights": False,
    "nonlinearity": "swiglu",
    "rotary_dim": H // N,
    "position_embedding_type": "rotary",
    "use_position_embedding": True,
    "embedding_dropout_rate": 0.0,
    "attention_dropout_rate": 0.0,
    "dropout_rate": 0.0,
    "embedding_layer_norm": False,
    "attention_type": "scaled_dot_product",
    "use_projection_bias_in_attention": False,
    "use_ffn_bias_in_attention": False,
    "use_ffn_bias": False,
    "use_bias_in_output": False,
    "norm_first": True,
    "use_ff_layer1_dropout": False,
    "use_rms_norm": True,
    "mixed_precision": True,
}

# model -> (HF config, HF tensors, CS tensors, keys of the yaml's section)
EXPECTED: dict[str, tuple[dict[str, Any], dict[str, list[int]], dict[str, list[int]], set[str]]] = {
    "gpt2": (
        HF_GPT | {"scale_attn_weights": True},
        {"wte.weight": [V, H], "wpe.weight": [P, H]}
        | both("h.0.ln_1", [H])
        | both("h.0.ln_2", [H])
        | both("h.0.attn.c_attn", [H, 3 * H], [3 * H])
        | both("h.0.attn.c_proj", [H, H])
        | both("h.0.mlp.c_fc", [H, F], [F])
        | both("h.0.mlp.c_proj", [F, H], [H])
        | both("ln_f", [H]),
        WORDS | POSITIONS | NORMS | attention(has_bias=True) | FFN | LAST | LM_HEAD,
        GPT_YAML | {"dropout_rate", "attention_type"},
    ),
    "gptj": (
        HF_GPTJ,
        {"wte.weight": [V, H]}
        | {f"h.0.attn.{part}_proj.weight": [H, H] for part in ("q", "k", "v", "out")}
        | both("h.0.ln_1", [H])
        | both("h.0.mlp.fc_in", [F, H])
        | both("h.0.mlp.fc_out", [H, F])
        | both("ln_f", [H])
        | both("lm_head", [V, H]),
        WORDS | both(f"{BLOCK}.norm1", [H]) | attention(has_bias=False) | FFN | LAST | both("lm_head", [V, H]),
        J_YAML | {"position_embedding_type"},
    ),
    "codegen": (
        HF_GPTJ,
        {"wte.weight": [V, H], "h.0.attn.qkv_proj.weight": [3 * H, H], "h.0.attn.out_proj.weight": [H, H]}
        | both("h.0.ln_1", [H])
        | both("h.0.mlp.fc_in", [F, H])
        | both("h.0.mlp.fc_out", [H, F])
        | both("ln_f", [H])
        | both("lm_head", [V, H]),
        WORDS | both(f"{BLOCK}.norm1", [H]) | attention(has_bias=False) | FFN | LAST | both("lm_head", [V, H]),
        J_YAML | {"position_embedding_type"},
    ),
    "gpt-neox": (
        HF_NEOX,
        {"embed_in.weight": [V, H], "embed_out.weight": [V, H]}
        | both("layers.0.input_layernorm", [H])
        | both("layers.0.post_attention_layernorm", [H])
        | both("layers.0.attention.query_key_value", [3 * H, H])
        | both("layers.0.attention.dense", [H, H])
        | both("layers.0.mlp.dense_h_to_4h", [F, H])
        | both("layers.0.mlp.dense_4h_to_h", [H, F])
        | both("final_layer_norm", [H]),
        WORDS | NORMS | attention(has_bias=True) | FFN | LAST | LM_HEAD,
        J_YAML | {"use_untied_layer_norm"},
    ),
}


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_names_shapes_and_yaml_keys_are_those_of_the_model_zoo(name: str, tmp_path: Path) -> None:
    config, theirs, expected, keys = EXPECTED[name]
    with TorchWriter(tmp_path / "pytorch_model.bin") as writer:
        for key, shape in theirs.items():
            writer.add(key, np.zeros(shape, np.float32))
    (tmp_path / "config.json").write_text(json.dumps(config))
    files = (str(tmp_path / "pytorch_model.bin"), str(tmp_path / "config.json"))
    checkpoint, params = convert_checkpoint_from_file(name, "hf", "cs-1.8", *files, Options(verify=True))
    with open_any(checkpoint) as reader:
        converted = {key.removeprefix("model."): list(reader.entry(key).shape) for key in reader.names()}
    assert converted == expected
    content = yaml.safe_load(Path(params).read_text())
    assert set(content) == {"model"}
    assert set(content["model"]) == keys


@pytest.mark.parametrize("name", ["llama", "llama-headless"])
def test_llamas_names_shapes_and_yaml_are_those_of_the_model_zoo(name: str, tmp_path: Path) -> None:
    is_headless = name.endswith("-headless")
    theirs = {
        key.removeprefix("model.") if is_headless else key: shape
        for key, shape in LLAMA_TENSORS.items()
        if not is_headless or key != "lm_head.weight"
    }
    generator = np.random.default_rng(5)
    given = {key: generator.normal(size=shape).astype(np.float32) for key, shape in theirs.items()}
    with TorchWriter(tmp_path / "pytorch_model.bin") as writer:
        for key, value in given.items():
            writer.add(key, value)
    (tmp_path / "config.json").write_text(json.dumps(HF_LLAMA))
    files = (str(tmp_path / "pytorch_model.bin"), str(tmp_path / "config.json"))
    checkpoint, params = convert_checkpoint_from_file(name, "hf", "cs-1.9", *files, Options(verify=True))
    with open_any(checkpoint) as reader:
        converted = {key.removeprefix("model."): reader.read(key) for key in reader.names()}
    # We do not create a random output layer for a headless model (converter/README.md).
    expected = {key: shape for key, shape in LLAMA_CS.items() if not is_headless or key != "lm_head.weight"}
    assert {key: list(value.shape) for key, value in converted.items()} == expected
    assert yaml.safe_load(Path(params).read_text()) == {"model": LLAMA_SECTION}

    prefix = "" if is_headless else "model."
    np.testing.assert_array_equal(
        converted[f"{BLOCK}.norm3.weight"], given[f"{prefix}layers.0.post_attention_layernorm.weight"]
    )
    np.testing.assert_array_equal(converted["ln_f.weight"], given[f"{prefix}norm.weight"])
    for part, theirs_part in (("linear_layer", "up"), ("linear_layer_for_glu", "gate")):
        weight = given[f"{prefix}layers.0.mlp.{theirs_part}_proj.weight"]
        np.testing.assert_array_equal(converted[f"{BLOCK}.ffn.ffn.0.{part}.weight"], weight)
    attention_of = f"{prefix}layers.0.self_attn"
    for part, theirs_part in (("v", "v"), ("output", "o")):
        weight = given[f"{attention_of}.{theirs_part}_proj.weight"]
        np.testing.assert_array_equal(converted[f"{BLOCK}.self_attn.proj_{part}_dense_layer.weight"], weight)


def test_llamas_queries_and_keys_turn_in_pairs() -> None:
    # Two heads of six: halves (0, 3), (1, 4), (2, 5) become neighbours.
    turned = HALVES.split(rows(12), 0, {"head_size": 6, "rotary_dim": 6})[:, 0]
    np.testing.assert_array_equal(turned, [0, 3, 1, 4, 2, 5, 6, 9, 7, 10, 8, 11])


@pytest.mark.parametrize(("act", "gated"), [("silu", "swiglu"), ("relu", "reglu"), ("gelu", "geglu")])
def test_llamas_activation_has_a_gated_name_in_cs(act: str, gated: str) -> None:
    section = convert_config("llama", "hf", "cs-1.9", HF_LLAMA | {"hidden_act": act})["model"]
    assert section["nonlinearity"] == gated
    assert (HF_LLAMA | {"hidden_act": act}).items() <= convert_config("llama", "cs-1.9", "hf", section).items()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"nonlinearity": "gelu"}, "gelu is not a supported GLU activation in HF"),
        ({"rotary_dim": None}, "rotary_dim must be specified"),
        ({"rotary_dim": 1}, r"rotary_dim=1\. Only hidden_size // num_heads = 2 is supported"),
        ({"position_embedding_type": None}, "position_embedding_type=learned"),
        ({"use_ffn_bias": None}, "use_ffn_bias=True"),
        ({"use_rms_norm": None}, "use_rms_norm=False"),
        ({"fixed_sparse_attention": "local"}, "fixed_sparse_attention=local"),
    ],
)
def test_a_cs_config_that_llama_cannot_express_is_refused(changes: dict[str, Any], message: str) -> None:
    section = {key: value for key, value in (LLAMA_SECTION | changes).items() if value is not None}
    with pytest.raises(ConfigConversionError, match=message):
        convert_config("llama", "cs-1.9", "hf", section)


def test_a_llama_activation_without_a_gate_is_refused() -> None:
    with pytest.raises(ConfigConversionError, match="tanh is not a GLU-able activation in CS"):
        convert_config("llama", "hf", "cs-1.9", HF_LLAMA | {"hidden_act": "tanh"})


BERT = {"vocab_size": 30522, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "hidden_act": "gelu"}
BERT |= {"intermediate_size": 16, "max_position_embeddings": 6, "hidden_dropout_prob": 0.1, "layer_norm_eps": 1e-12}
BERT |= {"attention_probs_dropout_prob": 0.1, "initializer_range": 0.02}
BERT_YAML = {"vocab_size", "max_position_embeddings", "hidden_size", "num_hidden_layers", "initializer_range"}
BERT_YAML |= {"num_heads", "filter_size", "layer_norm_epsilon", "encoder_nonlinearity", "dropout_rate"}
BERT_YAML |= {"attention_dropout_rate", "share_embedding_weights", "mixed_precision", "enable_vts"}
BERT_YAML |= {"pooler_nonlinearity", "mlm_nonlinearity"}
T5_YAML = {"src_vocab_size", "d_model", "d_kv", "d_ff", "num_heads", "relative_attention_num_buckets", "dropout_rate"}
T5_YAML |= {"layer_norm_epsilon", "encoder_num_hidden_layers", "decoder_num_hidden_layers", "share_embedding_weights"}
T5_YAML |= {"encoder_nonlinearity", "decoder_nonlinearity", "src_max_position_embeddings", "mixed_precision"}
T5_YAML |= {"tgt_max_position_embeddings"}


@pytest.mark.parametrize(
    ("name", "config", "keys"),
    [
        ("bert", BERT | {"position_embedding_type": "absolute"}, BERT_YAML | {"position_embedding_type"}),
        (
            "bert-sequence-classifier",
            BERT | {"num_labels": 1},
            BERT_YAML | {"num_labels", "task_dropout", "problem_type"},
        ),
        (
            "bert-token-classifier",
            BERT | {"id2label": {"0": "a", "1": "b", "2": "c"}},
            BERT_YAML | {"num_classes", "encoder_output_dropout_rate", "loss_weight", "include_padding_in_loss"},
        ),
        ("bert-q&a", BERT, BERT_YAML),
        ("t5", {"num_layers": 2}, T5_YAML),
    ],
)
def test_converted_configs_have_the_expected_keys(name: str, config: dict[str, Any], keys: set[str]) -> None:
    section = convert_config(name, "hf", "cs-1.8", config)["model"]
    assert set(section) == keys
    # Converting back restores the given settings.
    if name.startswith("bert"):
        back = convert_config(name, "cs-1.8", "hf", section)
        stated = {key: value for key, value in config.items() if key not in ("id2label", "num_labels")}
        assert stated.items() <= back.items()


@pytest.mark.parametrize(
    ("name", "source", "config", "message"),
    [
        ("gptj", "cs-1.8", {"vocab_size": 9}, r"use_projection_bias_in_attention=True. Only False is supported"),
        ("gptj", "hf", HF_GPTJ | {"rotary": False}, "HF GPT-J must use rotary embeddings, but got rotary=False"),
        ("gptj", "cs-1.8", CS_SIZES | {"position_embedding_type": "learned"} | {
            "use_projection_bias_in_attention": False, "use_ffn_bias_in_attention": False, "use_ffn_bias": True,
        }, "CS GPT-J must use rotary embeddings, but got position_embedding_type=learned"),
        ("gpt2", "cs-1.8", {"reorder_and_upcast_attn": False}, "reorder_and_upcast_attn should not appear"),
        ("gpt2", "cs-1.8", CS_SIZES | {"attention_type": "linear"}, "attention_type=linear. Only scaled_dot"),
        ("gpt2", "cs-1.8", {"vocab_size": 9}, "the config lacks hidden_size, num_heads"),
        ("gpt-neox", "hf", {"rotary": True}, "rotary should not appear in the config"),
        ("gpt-neox", "hf", {"rotary_emb_base": 500}, "rotary_emb_base=500. Only 10000 is supported"),
        ("gpt-neox", "cs-1.8", {}, "use_untied_layer_norm=False. Only True is supported"),
        ("codegen", "hf", HF_GPTJ | {"n_head": 2}, "doesn't support n_head < 4 because of hardcoded TPU constraint"),
        ("bert", "hf", {"position_embedding_type": "relative_key"}, "CS model doesn't support HF's position_emb"),
        ("bert", "cs-1.8", {"pooler_nonlinearity": "tanh", "position_embedding_type": "fixed"},
            "HF model doesn't support CS's position_embedding_type=fixed"),
        ("bert", "cs-1.8", {"encoder_nonlinearity": "gelu"}, "pooler_nonlinearity=gelu. Only tanh is supported"),
        ("bert", "cs-1.8", {"pooler_nonlinearity": "tanh", "mlm_nonlinearity": "relu"},
            "HF model doesn't support different encoder & mlm nonlinearities"),
        ("bert-sequence-classifier", "hf", {"num_labels": 3}, "Cannot infer the problem_type"),
        ("bert-q&a", "hf", {"num_labels": 3}, "num_labels=3. Only 2 is supported"),
        ("t5", "cs-1.8", {"encoder_nonlinearity": "relu", "decoder_nonlinearity": "gelu"},
            "Encoder & Decoder nonlinearities must be the same in HF model. Got: relu vs gelu"),
        ("t5", "cs-1.8", {"src_vocab_size": 9, "tgt_vocab_size": 8},
            "HF implementation doesn't allow tgt_vocab_size != src_vocab_size"),
        ("t5", "cs-1.7", {"use_pre_encoder_decoder_layer_norm": True}, "Only False is supported"),
    ],
)  # fmt: skip
def test_a_config_error_names_the_setting_and_the_supported_value(
    name: str, source: str, config: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigConversionError, match=message):
        convert_config(name, source, "hf" if source != "hf" else "cs-1.8", config)


def test_keys_without_a_rule_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    convert_config("gpt2", "hf", "cs-1.8", HF_GPT | {"use_cache": True})
    assert "Key not matched: use_cache" in caplog.text


def test_t5s_sentinels_count_towards_the_vocabulary_of_hugging_face() -> None:
    config = {"src_vocab_size": 32000, "extra_ids": 128}
    assert convert_config("t5", "cs-1.8", "hf", config)["vocab_size"] == 32128


def rows(count: int) -> np.ndarray:
    return np.arange(count)[:, None] * np.ones([1, 2])


def test_neox_rows_are_taken_by_head_and_rotated_halves_become_pairs() -> None:
    config = {"head_size": 6, "rotary_dim": 4}
    packed = rows(2 * 3 * 6)
    q = NEOX_PACKED.split(packed, 0, config)[:, 0]
    # Of each head's six rows the first four turn: old 0, 2, 1, 3.
    np.testing.assert_array_equal(q, [0, 2, 1, 3, 4, 5, 18, 20, 19, 21, 22, 23])
    np.testing.assert_array_equal(NEOX_PACKED.split(packed, 2, config)[:, 0], [*range(12, 18), *range(30, 36)])


def test_codegen_groups_hold_q_then_v_then_k() -> None:
    packed = rows(4 * 3 * 2)
    parts = [CODEGEN_PACKED.split(packed, part, {})[:, 0] for part in range(3)]
    np.testing.assert_array_equal(parts[0], [0, 1, 6, 7, 12, 13, 18, 19])
    np.testing.assert_array_equal(parts[1], [4, 5, 10, 11, 16, 17, 22, 23])
    np.testing.assert_array_equal(parts[2], [2, 3, 8, 9, 14, 15, 20, 21])


@pytest.mark.parametrize(
    ("layout", "shape"), [(NEOX_PACKED, [36, 5]), (CODEGEN_PACKED, [24, 5]), (THIRDS, [5, 12]), (HALVES, [12, 5])]
)
@pytest.mark.parametrize("is_bias", [False, True])
def test_joining_undoes_splitting(layout: Any, shape: list[int], is_bias: bool) -> None:
    config = {"head_size": 6, "rotary_dim": 4}
    outputs = shape[-1] if layout is THIRDS else shape[0]
    stored = np.random.default_rng(3).normal(size=[outputs] if is_bias else shape)
    parts = [layout.split(stored, part, config) for part in range(layout.parts)]
    np.testing.assert_array_equal(layout.join(parts, config), stored)
