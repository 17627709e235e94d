"""Llama and Mistral. In CS: GPT2LMHeadModel with rotary positions, root-mean-square norms and a gated feed-forward."""

from __future__ import annotations

from dataclasses import replace

from cerebras_tensorflow.converter.layouts import HALVES, HALVES_TRANSPOSED
from cerebras_tensorflow.converter.models import parts, rotary
from cerebras_tensorflow.converter.models.gpt2 import TABLE
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

_MISTRAL_DEFAULTS = {"intermediate_size": 14336, "max_position_embeddings": 131072, "num_key_value_heads": 8}
_GATED = {"silu": "swiglu", "relu": "reglu", "gelu": "geglu"}  # hidden_act <-> nonlinearity of CS


def _tensors(config: Config) -> list[Tensor]:
    tensors = [parts.plain(TABLE, "embed_tokens.weight", "input_embedding/embedding_weights")]
    for i in range(config["num_hidden_layers"]):
        block, scope = f"transformer_decoder.layers.{i}", f"decoder/{i}"
        tensors += parts.norm(
            f"{block}.norm1", f"layers.{i}.input_layernorm", f"{scope}/attention_norm", has_bias=False
        )
        for letter in "qk":
            key = f"{block}.self_attn.proj_{letter}_dense_layer.weight"
            places = {
                CS: Place(key),
                HF: Place(f"layers.{i}.self_attn.{letter}_proj.weight", HALVES),
                TF: Place(f"{scope}/attention/{letter}_proj/{letter}_proj/kernel", HALVES_TRANSPOSED),
            }
            tensors.append(Tensor(key, places))
        for name, theirs, ours in (("v", "v_proj", "v_proj"), ("output", "o_proj", "out_proj")):
            key = f"{block}.self_attn.proj_{name}_dense_layer"
            tensors += parts.linear(key, f"layers.{i}.self_attn.{theirs}", f"{scope}/attention/{ours}", has_bias=False)
        tensors += parts.norm(
            f"{block}.norm3", f"layers.{i}.post_attention_layernorm", f"{scope}/mlp_norm", has_bias=False
        )
        for name, key in (
            ("up_proj", "ffn.ffn.0.linear_layer"),
            ("gate_proj", "ffn.ffn.0.linear_layer_for_glu"),
            ("down_proj", "ffn.ffn.1.linear_layer"),
        ):
            tensors += parts.linear(f"{block}.{key}", f"layers.{i}.mlp.{name}", f"{scope}/mlp/{name}", has_bias=False)
    tensors += parts.last_norm("norm", "post_decoder_norm", has_bias=False)
    (head,) = parts.linear("lm_head", "lm_head", "lm_head", has_bias=False)
    return [*tensors, parts.tied(head, TABLE) if config["tie_word_embeddings"] else head]


def _read(config: Config, values: Config, kind: str) -> Config:
    head_size = values["hidden_size"] // values["num_attention_heads"]
    settings: Config = {"rotary_dim": head_size}
    if config.get("head_dim") not in (None, head_size):
        raise ConfigConversionError(
            f"Can't convert config with head_dim={config['head_dim']}. Only hidden_size // num_heads = {head_size} is "
            "supported."
        )
    settings |= rotary.read_hf(config) if kind == HF else rotary.read_cs(config)
    num_groups = rotary.read_groups(config) if kind == CS else values["num_key_value_heads"]
    settings["num_key_value_heads"] = num_groups or values["num_attention_heads"]
    if kind == CS:
        settings["rope_theta"] = config.get("rope_theta") or rotary.THETA
        plain_names = {gated: name for name, gated in _GATED.items()}
        if values["hidden_act"] not in plain_names:
            raise ConfigConversionError(f"{values['hidden_act']} is not a supported GLU activation in HF")
        settings["hidden_act"] = plain_names[values["hidden_act"]]
        if "rotary_dim" not in config:
            raise ConfigConversionError("rotary_dim must be specified")
        if config["rotary_dim"] != head_size:
            raise ConfigConversionError(
                f"Can't convert config with rotary_dim={config['rotary_dim']}. Only hidden_size // num_heads = "
                f"{head_size} is supported."
            )
    return settings


def _write(values: Config, _target_values: Config, target: str) -> Config:
    if family(target) == HF:
        return rotary.write_hf(values)
    if family(target) != CS:
        if values["rope_scaling"] is not None:
            raise ConfigConversionError(
                f"Can't convert config with rope_type={values['rope_scaling']['rope_type']}. Only default is supported."
            )
        return {}
    if values["hidden_act"] not in _GATED:
        raise ConfigConversionError(f"{values['hidden_act']} is not a GLU-able activation in CS")
    settings = {"nonlinearity": _GATED[values["hidden_act"]], "rotary_dim": values["rotary_dim"]}
    groups = rotary.write_groups(values["num_key_value_heads"], values["num_attention_heads"], target)
    return settings | rotary.write_cs(values, target) | groups


LLAMA = Model(
    name="llama",
    tensors=_tensors,
    config_keys=(
        ConfigKey("vocab_size", "vocab_size", "vocab_size", 32000),
        ConfigKey("hidden_size", "hidden_size", "hidden_size", 4096),
        ConfigKey("num_hidden_layers", "num_hidden_layers", "num_hidden_layers", 32),
        ConfigKey("num_attention_heads", "num_heads", "num_heads", 32),
        ConfigKey("intermediate_size", "filter_size", "filter_size", 11008),
        ConfigKey("max_position_embeddings", "max_position_embeddings", "max_position_embeddings", 2048),
        ConfigKey("rms_norm_eps", "layer_norm_epsilon", "layer_norm_epsilon", 1e-6),
        ConfigKey("initializer_range", "initializer_range", "initializer_range", 0.02),
        ConfigKey("tie_word_embeddings", "share_embedding_weights", "share_embedding_weights", False),
        ConfigKey("hidden_act", "nonlinearity", "nonlinearity", "silu", cs_default="gelu"),
        ConfigKey("num_key_value_heads", None, "num_kv_heads", None),
        ConfigKey("rope_theta", None, "rope_theta", rotary.THETA),
    ),
    constants=(
        *parts.checked(HF, attention_bias=False, mlp_bias=False),
        *parts.checked(CS, fixed_sparse_attention=None),
        *parts.with_defaults(
            parts.written(
                position_embedding_type="rotary",
                embedding_dropout_rate=0.0,
                attention_dropout_rate=0.0,
                dropout_rate=0.0,
                embedding_layer_norm=False,
                attention_type="scaled_dot_product",
                use_projection_bias_in_attention=False,
                use_ffn_bias_in_attention=False,
                use_ffn_bias=False,
                use_bias_in_output=False,
                norm_first=True,
                use_ff_layer1_dropout=False,
            ),
            position_embedding_type="learned",
            use_projection_bias_in_attention=True,
            use_ffn_bias_in_attention=True,
            use_ffn_bias=True,
        ),
        *parts.before((2, 0), parts.with_defaults(parts.written(use_rms_norm=True), use_rms_norm=False)),
        *parts.since((2, 0), parts.with_defaults(parts.written(norm_type="rmsnorm"), norm_type="layernorm")),
        *parts.before((2, 1), parts.written(use_position_embedding=True)),
        *parts.since((2, 1), parts.checked(CS, use_position_embedding=True)),
    ),
    formats=(HF, "cs-1.9", *parts.CS_2_FORMATS, TF),
    hf_class="LlamaForCausalLM",
    cs_class="GPT2LMHeadModel",
    hf_prefix="model.",
    model_type="llama",
    read=_read,
    write=_write,
    read_keys={
        HF: rotary.HF_KEYS | {"head_dim"},
        CS: rotary.CS_KEYS | rotary.GROUP_KEYS | {"rotary_dim", "rope_theta"},
    },
    ignored={HF: r".*rotary_emb\.inv_freq", CS: parts.RUN_STATE, TF: parts.SLOTS},
    caveat="CS GPT2LMHeadModel configured as LLaMA",
)
_MISTRAL = replace(
    LLAMA,
    name="mistral",
    config_keys=(
        *(replace(key, default=_MISTRAL_DEFAULTS.get(key.hf, key.default), tf=None) for key in LLAMA.config_keys),
        ConfigKey("sliding_window", "attention_sliding_window_length", None, None),
    ),
    formats=(HF, *parts.CS_2_FORMATS[1:]),
    hf_class="MistralForCausalLM",
    model_type="mistral",
    caveat="CS GPT2LMHeadModel configured as Mistral",
)
MODELS = (LLAMA, parts.headless(LLAMA, "LlamaModel"), _MISTRAL, parts.headless(_MISTRAL, "MistralModel"))
