"""GPT-J and CodeGen. CodeGen is GPT-J with q, k and v in one tensor."""

from __future__ import annotations

from dataclasses import replace

from cerebras_tensorflow.converter.layouts import CODEGEN_PACKED
from cerebras_tensorflow.converter.models import parts
from cerebras_tensorflow.converter.models.gpt2 import DECODER_CONSTANTS, GPT_IGNORED, GPT_KEYS, TABLE, fill_inner
from cerebras_tensorflow.converter.rules import (
    CS,
    HF,
    TF,
    Config,
    ConfigConversionError,
    ConfigKey,
    Model,
    Place,
    Tensor,
    family,
)

_MIN_CODEGEN_HEADS = 4


def _gptj_tensors(config: Config) -> list[Tensor]:
    tensors = [parts.plain(TABLE, "wte.weight", "input_embedding/embedding_weights")]
    for i in range(config["n_layer"]):
        block, scope = f"transformer_decoder.layers.{i}", f"gptj_decoder/{i}"
        tensors += parts.norm(f"{block}.norm1", f"h.{i}.ln_1", f"{scope}/ln_1")
        for letter in "qkv":
            key = f"{block}.self_attn.proj_{letter}_dense_layer"
            tensors += parts.linear(key, f"h.{i}.attn.{letter}_proj", f"{scope}/attn/{letter}_proj", has_bias=False)
        key = f"{block}.self_attn.proj_output_dense_layer"
        tensors += parts.linear(key, f"h.{i}.attn.out_proj", f"{scope}/attn/out_proj", has_bias=False)
        for part, name in enumerate(("fc_in", "fc_out")):
            dense = f"{scope}/mlp/{parts.numbered('dense_layer', 2 * i + part)}"
            tensors += parts.linear(f"{block}.ffn.ffn.{part}.linear_layer", f"h.{i}.mlp.{name}", dense)
    tensors += parts.last_norm("ln_f", "post_decoder_layer_norm")
    weight, bias = parts.linear("lm_head", "lm_head", "lm_head")
    if config["tie_word_embeddings"]:
        weight, bias = parts.tied(weight, TABLE), replace(bias, places=bias.places | {TF: Place("bias")})
    return [*tensors, weight, bias]


def _codegen_tensors(config: Config) -> list[Tensor]:
    tensors = []
    for tensor in _gptj_tensors(config):
        places = {kind: place for kind, place in tensor.places.items() if kind != TF}
        block, _, letter = places[HF].name.removesuffix("_proj.weight").rpartition(".")
        if letter in "qkv":
            places[HF] = Place(f"{block}.qkv_proj.weight", CODEGEN_PACKED, "qkv".index(letter))
        tensors.append(replace(tensor, places=places))
    return tensors


def _read(config: Config, values: Config, kind: str) -> Config:
    settings = fill_inner(values)
    if kind == HF and "rotary" in config:
        if config["rotary"] is not True:
            raise ConfigConversionError(f"HF GPT-J must use rotary embeddings, but got rotary={config['rotary']}")
        settings["rotary"] = True
    if kind == CS and "position_embedding_type" in config:
        if config["position_embedding_type"] != "rotary":
            raise ConfigConversionError(
                "CS GPT-J must use rotary embeddings, but got "
                f"position_embedding_type={config['position_embedding_type']}"
            )
        settings["rotary"] = True
    if kind == TF:
        settings["rotary"] = True
    return settings


def _write(values: Config, _target_values: Config, target: str) -> Config:
    if not values.get("rotary"):
        return {}
    if family(target) == HF:
        return {"rotary": True}
    return {"position_embedding_type": "rotary"} if family(target) == CS else {}


def _read_codegen(config: Config, values: Config, kind: str) -> Config:
    if values.get("n_head") is not None and values["n_head"] < _MIN_CODEGEN_HEADS:
        raise ConfigConversionError("HF Model doesn't support n_head < 4 because of hardcoded TPU constraint")
    return _read(config, values, kind)


def _keys(dropout: float) -> tuple[ConfigKey, ...]:
    return (
        *GPT_KEYS,
        ConfigKey("rotary_dim", "rotary_dim", "rotary_dim", 64),
        ConfigKey("tie_word_embeddings", "share_embedding_weights", "share_embedding_weights", False, cs_default=True),
        ConfigKey("resid_pdrop", "residual_dropout_rate", "residual_dropout_rate", dropout, cs_default=0.1),
        ConfigKey("attn_pdrop", "attention_dropout_rate", "attention_dropout_rate", dropout, cs_default=0.1),
        ConfigKey("embd_pdrop", "embedding_dropout_rate", "embedding_dropout_rate", dropout, cs_default=0.1),
    )


_CONSTANTS = (
    *DECODER_CONSTANTS,
    *parts.since((2, 0), parts.checked(CS, norm_type="layernorm")),
    *parts.checked(HF, scale_attn_weights=True),
    *parts.with_defaults(
        parts.written(
            attention_type="scaled_dot_product",
            use_projection_bias_in_attention=False,
            use_ffn_bias_in_attention=False,
            use_ffn_bias=True,
            use_bias_in_output=True,
        ),
        use_projection_bias_in_attention=True,
        use_ffn_bias_in_attention=True,
        use_ffn_bias=False,
    ),
)

GPTJ = Model(
    name="gptj",
    tensors=_gptj_tensors,
    config_keys=_keys(dropout=0.1),
    constants=(*_CONSTANTS, *parts.since((2, 0), parts.written(use_untied_layer_norm=False))),
    formats=(HF, *parts.CS_FORMATS, TF),
    hf_class="GPTJForCausalLM",
    cs_class="GPTJModel",
    hf_prefix="transformer.",
    model_type="gptj",
    read=_read,
    write=_write,
    read_keys={HF: frozenset({"rotary"}), CS: frozenset({"position_embedding_type"})},
    ignored=GPT_IGNORED,
    caveat="CS GPTJModel configured as GPT-J",
)
CODEGEN = replace(
    GPTJ,
    name="codegen",
    tensors=_codegen_tensors,
    config_keys=_keys(dropout=0.0),
    constants=parts.with_defaults(
        (*_CONSTANTS, *parts.checked(CS, use_untied_layer_norm=False)), use_bias_in_output=False
    ),
    cs_name="gptj",
    formats=(HF, *parts.CS_FORMATS),
    hf_class="CodeGenForCausalLM",
    model_type="codegen",
    read=_read_codegen,
    caveat="CS GPTJModel configured as CodeGen",
)
MODELS = (GPTJ, parts.headless(GPTJ, "GPTJModel"), CODEGEN, parts.headless(CODEGEN, "CodeGenModel"))
