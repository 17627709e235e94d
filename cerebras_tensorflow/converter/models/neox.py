"""GPT-NeoX. In CS it is a GPTJModel with biases and two norms in each block."""

from __future__ import annotations

from cerebras_tensorflow.converter.layouts import NEOX_PACKED
from cerebras_tensorflow.converter.models import parts
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
)

_BASE = 10000


def _tensors(config: Config) -> list[Tensor]:
    tensors = [parts.plain(TABLE, "embed_in.weight", None)]
    for i in range(config["num_hidden_layers"]):
        block, theirs = f"transformer_decoder.layers.{i}", f"layers.{i}"
        tensors += parts.norm(f"{block}.norm1", f"{theirs}.input_layernorm", None)
        tensors += parts.norm(f"{block}.norm3", f"{theirs}.post_attention_layernorm", None)
        for part, letter in enumerate("qkv"):
            key = f"{block}.self_attn.proj_{letter}_dense_layer"
            tensors += parts.linear(key, f"{theirs}.attention.query_key_value", None, True, NEOX_PACKED, part)
        tensors += parts.linear(f"{block}.self_attn.proj_output_dense_layer", f"{theirs}.attention.dense", None)
        for part, name in enumerate(("dense_h_to_4h", "dense_4h_to_h")):
            tensors += parts.linear(f"{block}.ffn.ffn.{part}.linear_layer", f"{theirs}.mlp.{name}", None)
    tensors += parts.last_norm("final_layer_norm", None)
    (head,) = parts.linear("lm_head", "embed_out", None, has_bias=False)
    return [*tensors, parts.tied(head, TABLE) if config["tie_word_embeddings"] else head]


def _read(config: Config, values: Config, kind: str) -> Config:
    if "rotary" in config:
        raise ConfigConversionError("rotary should not appear in the config")
    head_size = values["hidden_size"] // values["num_attention_heads"]
    if kind == CS:
        rotary_dim = config.get("rotary_dim")
        rotary_dim = head_size if rotary_dim is None else rotary_dim
        return {"rotary_pct": rotary_dim / head_size, "rotary_dim": rotary_dim}
    # Newer releases of transformers have the base and the rotated part in a separate section.
    rope = config.get("rope_parameters") or {}
    if rope.get("rope_type", "default") != "default":
        raise ConfigConversionError(
            f"Can't convert config with rope_type={rope['rope_type']}. Only default is supported."
        )
    base = rope.get("rope_theta", config.get("rotary_emb_base", _BASE))
    if base != _BASE:
        raise ConfigConversionError(f"Can't convert config with rotary_emb_base={base}. Only {_BASE} is supported.")
    part = rope.get("partial_rotary_factor", config.get("rotary_pct", 0.25))
    return {"rotary_pct": part, "rotary_dim": int(head_size * part)}


def _write(values: Config, _target_values: Config, target: str) -> Config:
    if family(target) == HF:
        return {"rotary_pct": values["rotary_pct"], "rotary_emb_base": _BASE}
    return {"rotary_dim": values["rotary_dim"]}


NEOX = Model(
    name="gpt-neox",
    tensors=_tensors,
    config_keys=(
        ConfigKey("vocab_size", "vocab_size", None, 50432),
        ConfigKey("hidden_size", "hidden_size", None, 6144),
        ConfigKey("num_hidden_layers", "num_hidden_layers", None, 44),
        ConfigKey("num_attention_heads", "num_heads", None, 64),
        ConfigKey("intermediate_size", "filter_size", None, 24576),
        ConfigKey("max_position_embeddings", "max_position_embeddings", None, 2048, cs_default=1024),
        ConfigKey("hidden_act", "nonlinearity", None, "gelu"),
        ConfigKey("layer_norm_eps", "layer_norm_epsilon", None, 1e-5),
        ConfigKey("initializer_range", "initializer_range", None, 0.02),
        ConfigKey("tie_word_embeddings", "share_embedding_weights", None, False, cs_default=True),
    ),
    constants=(
        *DECODER_CONSTANTS,
        *parts.checked(HF, use_parallel_residual=True, scale_attn_weights=True, attention_bias=True, rope_scaling=None),
        *parts.since((2, 0), parts.checked(CS, norm_type="layernorm")),
        *parts.since((2, 1), parts.checked(CS, pos_scaling_factor=1.0)),
        *parts.checked(CS, position_embedding_type="rotary"),
        *parts.with_defaults(
            parts.written(
                attention_type="scaled_dot_product",
                use_untied_layer_norm=True,
                use_projection_bias_in_attention=True,
                use_ffn_bias_in_attention=True,
                use_ffn_bias=True,
                use_bias_in_output=False,
                embedding_dropout_rate=0.0,
                attention_dropout_rate=0.0,
                residual_dropout_rate=0.0,
            ),
            use_untied_layer_norm=False,
            use_ffn_bias=False,
            embedding_dropout_rate=0.1,
            attention_dropout_rate=0.1,
            residual_dropout_rate=0.1,
        ),
    ),
    formats=(HF, *parts.CS_FORMATS),
    hf_class="GPTNeoXForCausalLM",
    cs_class="GPTJModel",
    hf_prefix="gpt_neox.",
    hf_heads=("embed_out",),
    model_type="gpt_neox",
    read=_read,
    write=_write,
    read_keys={
        HF: frozenset({"rotary_pct", "rotary_emb_base", "rope_parameters"}),
        CS: frozenset({"rotary_dim"}),
    },
    ignored={
        HF: r"(gpt_neox\.)?layers\.\d+\.attention\.(bias|masked_bias|rotary_emb\.inv_freq)"
        r"|(gpt_neox\.)?rotary_emb\.inv_freq",
        CS: parts.RUN_STATE,
    },
    # In memory, transformers 5 names this layer lm_head; published files, and files that it saves, have embed_out.
    renamed={HF: ((r"lm_head\.(weight|bias)", r"embed_out.\1"),)},
    caveat="CS GPTJModel configured as GPT-NeoX",
)
MODELS = (NEOX, parts.headless(NEOX, "GPTNeoXModel"))
