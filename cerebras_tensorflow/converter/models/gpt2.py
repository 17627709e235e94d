"""GPT-2."""

from __future__ import annotations

from cerebras_tensorflow.converter.layouts import THIRDS, TRANSPOSED
from cerebras_tensorflow.converter.models import parts
from cerebras_tensorflow.converter.rules import (
    CS,
    HF,
    REQUIRED,
    TF,
    Config,
    ConfigConversionError,
    ConfigKey,
    Model,
    Tensor,
    family,
)

TABLE = "embedding_layer.word_embeddings.weight"
# Settings with the same names in GPT-2, GPT-J and CodeGen.
GPT_KEYS = (
    ConfigKey("vocab_size", "vocab_size", "vocab_size"),
    ConfigKey("n_embd", "hidden_size", "hidden_size"),
    ConfigKey("n_head", "num_heads", "num_heads"),
    ConfigKey("n_layer", "num_hidden_layers", "num_hidden_layers"),
    ConfigKey("n_inner", "filter_size", "filter_size", None),
    ConfigKey("n_positions", "max_position_embeddings", "max_position_embeddings"),
    ConfigKey("activation_function", "nonlinearity", "nonlinearity", "gelu_new"),
    ConfigKey("layer_norm_epsilon", "layer_norm_epsilon", "layer_norm_epsilon", 1e-5),
    ConfigKey("initializer_range", "initializer_range", "initializer_range", 0.02),
)
# Fixed settings of GPT-2, GPT-J, CodeGen and GPT-NeoX in the Model Zoo.
DECODER_CONSTANTS = parts.checked(
    CS,
    use_position_embedding=True,
    embedding_layer_norm=False,
    fixed_sparse_attention=None,
    norm_first=True,
    use_ff_layer1_dropout=False,
)
GPT_IGNORED = {
    # Masks that transformers creates itself.
    HF: r"(transformer\.)?h\.\d+\.attn\.(bias|masked_bias|causal_mask)",
    CS: parts.RUN_STATE,
    TF: parts.SLOTS,
}
_ATTENTION_TYPES = {True: "scaled_dot_product", False: "dot_product"}


def _tensors(config: Config) -> list[Tensor]:
    positions = "embedding_layer.position_embeddings.weight"
    tensors = [
        parts.plain(TABLE, "wte.weight", "input_embedding/embedding_weights"),
        parts.plain(positions, "wpe.weight", "position_embedding/position_embedding_weights"),
    ]
    for i in range(config["n_layer"]):
        block = f"transformer_decoder.layers.{i}"
        attention = f"decoder/{parts.numbered('self_attention', i)}"
        tensors += parts.norm(
            f"{block}.norm1", f"h.{i}.ln_1", f"decoder/{parts.numbered('layer_normalization_layer', 3 * i)}"
        )
        for part, letter in enumerate("qkv"):
            key = f"{block}.self_attn.proj_{letter}_dense_layer"
            tensors += parts.linear(key, f"h.{i}.attn.c_attn", f"{attention}/{letter}_projection", True, THIRDS, part)
        key = f"{block}.self_attn.proj_output_dense_layer"
        tensors += parts.linear(key, f"h.{i}.attn.c_proj", f"{attention}/output_transform", True, TRANSPOSED)
        tensors += parts.norm(
            f"{block}.norm3", f"h.{i}.ln_2", f"decoder/{parts.numbered('layer_normalization_layer', 3 * i + 2)}"
        )
        for part, name in enumerate(("c_fc", "c_proj")):
            scope = f"decoder/{parts.numbered('ffn', i)}/{parts.numbered('dense_layer', 2 * i + part)}"
            tensors += parts.linear(
                f"{block}.ffn.ffn.{part}.linear_layer", f"h.{i}.mlp.{name}", scope, True, TRANSPOSED
            )
    tensors += parts.last_norm("ln_f", "post_decoder_layer_norm")
    (head,) = parts.linear("lm_head", "lm_head", "lm_output_layer", has_bias=False)
    return [*tensors, parts.tied(head, TABLE) if config["tie_word_embeddings"] else head]


def fill_inner(values: Config) -> Config:
    """Return the default feed-forward width, from the hidden width, if the config has none."""
    return {"n_inner": 4 * values["n_embd"]} if values.get("n_inner") is None and values.get("n_embd") else {}


def _read(config: Config, values: Config, kind: str) -> Config:
    settings = fill_inner(values)
    if kind == HF and "scale_attn_weights" in config:
        settings["scale_attn_weights"] = config["scale_attn_weights"]
    if kind == TF:
        # Our model has one rate for both, and always scales.
        settings |= {"embd_pdrop": values["resid_pdrop"], "scale_attn_weights": True}
    if kind == CS:
        for key, name in (("embd_pdrop", "embedding_dropout_rate"), ("attn_pdrop", "attention_dropout_rate")):
            if config.get(name) is None:
                settings[key] = values["resid_pdrop"]
        if "attention_type" in config:
            scaled = {name: value for value, name in _ATTENTION_TYPES.items()}
            if config["attention_type"] not in scaled:
                raise ConfigConversionError(
                    f"Can't convert config with attention_type={config['attention_type']}. Only {' or '.join(scaled)} "
                    "is supported."
                )
            settings["scale_attn_weights"] = scaled[config["attention_type"]]
    return settings


def _write(values: Config, _target_values: Config, target: str) -> Config:
    is_scaled = values.get("scale_attn_weights")
    if family(target) == HF:
        return {} if is_scaled is None else {"scale_attn_weights": is_scaled}
    if family(target) == CS:
        return {} if is_scaled is None else {"attention_type": _ATTENTION_TYPES[is_scaled]}
    if is_scaled is False:
        raise ConfigConversionError("Can't convert config with scale_attn_weights=False. Only True is supported.")
    if values["embd_pdrop"] != values["resid_pdrop"]:
        raise ConfigConversionError(
            f"Can't convert config with embd_pdrop={values['embd_pdrop']}. "
            f"Only {values['resid_pdrop']} (resid_pdrop) is supported."
        )
    return {}


GPT2 = Model(
    name="gpt2",
    tensors=_tensors,
    config_keys=(
        *GPT_KEYS,
        ConfigKey("tie_word_embeddings", "share_embedding_weights", "share_embedding_weights", True),
        ConfigKey("resid_pdrop", "dropout_rate", "dropout_rate", 0.1, cs_default=REQUIRED),
        ConfigKey("attn_pdrop", "attention_dropout_rate", "attention_dropout_rate", 0.1),
        ConfigKey("embd_pdrop", "embedding_dropout_rate", None, 0.1),
    ),
    constants=(
        *DECODER_CONSTANTS,
        *parts.checked(HF, scale_attn_by_inverse_layer_idx=False, reorder_and_upcast_attn=False),
        *parts.checked(
            CS,
            position_embedding_type="learned",
            use_projection_bias_in_attention=True,
            use_ffn_bias_in_attention=True,
            use_ffn_bias=True,
        ),
        *parts.before((2, 0), parts.checked(CS, use_bias_in_output=False)),
        *parts.since((2, 0), (*parts.written(use_bias_in_output=False), *parts.checked(CS, norm_type="layernorm"))),
    ),
    formats=(HF, *parts.CS_FORMATS, TF),
    hf_class="GPT2LMHeadModel",
    cs_class="GPT2LMHeadModel",
    hf_prefix="transformer.",
    model_type="gpt2",
    read=_read,
    write=_write,
    read_keys={HF: frozenset({"scale_attn_weights"}), CS: frozenset({"attention_type"})},
    ignored=GPT_IGNORED,
)
MODELS = (GPT2, parts.headless(GPT2, "GPT2Model"))
