"""Falcon. In CS it is a GPTJModel whose heads may share keys and values."""

from __future__ import annotations

from cerebras_tensorflow.converter.layouts import FALCON_PACKED
from cerebras_tensorflow.converter.models import parts, rotary
from cerebras_tensorflow.converter.models.gpt2 import DECODER_CONSTANTS, TABLE
from cerebras_tensorflow.converter.rules import (
    CS,
    HF,
    Config,
    ConfigConversionError,
    ConfigKey,
    Model,
    Tensor,
    family,
    release,
)

_BIASES = ("use_projection_bias_in_attention", "use_ffn_bias_in_attention", "use_ffn_bias")


def _tensors(config: Config) -> list[Tensor]:
    tensors = [parts.plain(TABLE, "word_embeddings.weight", None)]
    has_bias, is_untied = config["bias"], config["use_untied_layer_norm"]
    for i in range(config["num_hidden_layers"]):
        block, theirs = f"transformer_decoder.layers.{i}", f"h.{i}"
        tensors += parts.norm(f"{block}.norm1", f"{theirs}.{'ln_attn' if is_untied else 'input_layernorm'}", None)
        if is_untied:
            tensors += parts.norm(f"{block}.norm3", f"{theirs}.ln_mlp", None)
        for part, letter in enumerate("qkv"):
            key = f"{block}.self_attn.proj_{letter}_dense_layer"
            tensors += parts.linear(
                key, f"{theirs}.self_attention.query_key_value", None, has_bias, FALCON_PACKED, part
            )
        tensors += parts.linear(
            f"{block}.self_attn.proj_output_dense_layer", f"{theirs}.self_attention.dense", None, has_bias
        )
        for part, name in enumerate(("dense_h_to_4h", "dense_4h_to_h")):
            tensors += parts.linear(f"{block}.ffn.ffn.{part}.linear_layer", f"{theirs}.mlp.{name}", None, has_bias)
    tensors += parts.last_norm("ln_f", None)
    (head,) = parts.linear("lm_head", "lm_head", None, has_bias=False)
    return [*tensors, parts.tied(head, TABLE) if config["tie_word_embeddings"] else head]


def _read(config: Config, values: Config, kind: str) -> Config:
    heads = values["num_attention_heads"]
    settings: Config = {"rotary_dim": values["hidden_size"] // heads}
    if kind == HF:
        scaling = rotary.read_hf(config)
        if scaling.pop("rope_scaling") is not None:
            raise ConfigConversionError("Can't convert config with rope_scaling. Falcon in CS has none.")
        is_new = bool(config.get("new_decoder_architecture"))
        num_norms = config.get("num_ln_in_parallel_attn") or (2 if is_new else 1)
        is_untied = is_new and num_norms == 2
        old_groups = 1 if config.get("multi_query", True) else heads
        groups = (config.get("num_kv_heads") or heads) if is_new else old_groups
        if config.get("ffn_hidden_size") not in (None, 4 * values["hidden_size"]):
            size = config["ffn_hidden_size"]
            raise ConfigConversionError(
                f"Can't convert config with ffn_hidden_size={size}. Only 4 * hidden_size is supported."
            )
        return settings | scaling | {"num_kv_heads": groups, "use_untied_layer_norm": is_untied}
    biases = {key: config.get(key, key != "use_ffn_bias") for key in _BIASES}
    if len(set(biases.values())) > 1:
        raise ConfigConversionError(f"Can't convert config with {biases}. HF Falcon has one setting for all biases.")
    for key, expected in (("filter_size", 4 * values["hidden_size"]), ("rotary_dim", settings["rotary_dim"])):
        if config.get(key) != expected:
            raise ConfigConversionError(
                f"Can't convert config with {key}={config.get(key)}. Only {expected} is supported."
            )
    groups = rotary.read_groups(config) or heads
    is_untied = bool(config.get("use_untied_layer_norm"))
    if not is_untied and groups not in (1, heads):
        raise ConfigConversionError(
            f"Can't convert config with num_kv_groups={groups} and use_untied_layer_norm=False. HF Falcon then has 1 "
            f"or {heads} groups."
        )
    theta = config.get("rope_theta") or rotary.THETA
    untied = {"num_kv_heads": groups, "use_untied_layer_norm": is_untied, "rope_theta": theta}
    return settings | untied | {"bias": biases["use_ffn_bias"]}


def _write(values: Config, _target_values: Config, target: str) -> Config:
    heads, groups, is_untied = (values[key] for key in ("num_attention_heads", "num_kv_heads", "use_untied_layer_norm"))
    if family(target) == HF:
        return {
            "bias": values["bias"],
            "alibi": False,
            "new_decoder_architecture": is_untied,
            "num_ln_in_parallel_attn": 2 if is_untied else 1,
            "parallel_attn": True,
            "multi_query": not is_untied and groups == 1,
            "num_kv_heads": groups,
            "rope_theta": values["rope_theta"],
        }
    settings: Config = {**dict.fromkeys(_BIASES, values["bias"]), "loss_scaling": "num_tokens"}
    settings |= {"filter_size": 4 * values["hidden_size"], "rotary_dim": values["rotary_dim"]}
    settings |= {"use_untied_layer_norm": is_untied}
    if release(target) < (2, 1):
        rotary.only("rope_theta", values["rope_theta"], rotary.THETA)
    else:
        settings["rope_theta"] = values["rope_theta"]
    return settings | rotary.write_groups(groups, heads, target)


_HF_KEYS = frozenset(
    {"bias", "new_decoder_architecture", "num_ln_in_parallel_attn", "multi_query", "num_kv_heads", "ffn_hidden_size"}
)
FALCON = Model(
    name="falcon",
    tensors=_tensors,
    config_keys=(
        ConfigKey("vocab_size", "vocab_size", None, 65024),
        ConfigKey("hidden_size", "hidden_size", None, 4544),
        ConfigKey("num_hidden_layers", "num_hidden_layers", None, 32),
        ConfigKey("num_attention_heads", "num_heads", None, 71),
        ConfigKey("max_position_embeddings", "max_position_embeddings", None, 2048, cs_default=1024),
        ConfigKey("layer_norm_epsilon", "layer_norm_epsilon", None, 1e-5),
        ConfigKey("initializer_range", "initializer_range", None, 0.02),
        ConfigKey("tie_word_embeddings", "share_embedding_weights", None, True),
        ConfigKey("attention_dropout", "attention_dropout_rate", None, 0.0, cs_default=0.1),
        ConfigKey("hidden_dropout", "residual_dropout_rate", None, 0.0, cs_default=0.1),
        ConfigKey("bias", None, None, False),
        ConfigKey("rope_theta", None, None, rotary.THETA),
    ),
    constants=(
        *DECODER_CONSTANTS,
        *parts.checked(HF, alibi=False, parallel_attn=True, activation="gelu"),
        *parts.checked(CS, norm_type="layernorm", use_bias_in_output=False),
        *parts.with_defaults(
            parts.written(
                position_embedding_type="rotary",
                attention_type="scaled_dot_product",
                nonlinearity="gelu",
                embedding_dropout_rate=0.0,
            ),
            embedding_dropout_rate=0.1,
        ),
    ),
    formats=(HF, *parts.CS_2_FORMATS),
    hf_class="FalconForCausalLM",
    cs_class="GPTJModel",
    hf_prefix="transformer.",
    model_type="falcon",
    read=_read,
    write=_write,
    read_keys={
        HF: rotary.HF_KEYS | _HF_KEYS,
        CS: rotary.GROUP_KEYS
        | {*_BIASES, "filter_size", "rotary_dim", "use_untied_layer_norm", "rope_theta", "loss_scaling"},
    },
    ignored={HF: r".*(rotary_emb\.inv_freq|rotary\.inv_freq)", CS: parts.RUN_STATE},
    caveat="CS GPTJModel configured as Falcon",
)
MODELS = (FALCON, parts.headless(FALCON, "FalconModel"))
