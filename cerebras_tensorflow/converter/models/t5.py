"""T5 and the plain Transformer. In CS both have the same names; transformers has no plain Transformer."""

from __future__ import annotations

from dataclasses import replace

from cerebras_tensorflow.converter.models import parts
from cerebras_tensorflow.converter.rules import (
    CS,
    CS_OLD,
    HF,
    TF,
    Config,
    ConfigConversionError,
    ConfigKey,
    Model,
    Place,
    Tensor,
    family,
    release,
)

_TABLE = "encoder_embeddings.word_embeddings.weight"
_STACKS = ("encoder", "decoder")
_GATED = "gated-"
_GLUS = {"gated-silu": "swiglu", "gated-relu": "reglu", "gated-gelu": "geglu"}  # feed_forward_proj <-> nonlinearity


def _t5_tensors(config: Config) -> list[Tensor]:
    table = parts.plain(
        _TABLE,
        "shared.weight",
        "encoder_embedding/embedding_weights",
        copies={
            HF: tuple(f"{stack}.embed_tokens.weight" for stack in _STACKS),
            CS: ("decoder_embeddings.word_embeddings.weight",),
            CS_OLD: ("decoder_token_embedding.weight",),
        },
    )
    tensors = [replace(table, places=table.places | {CS_OLD: Place("encoder_token_embedding.weight")})]
    norm_number = dense_number = 0
    for stack, num_blocks in (("encoder", config["num_layers"]), ("decoder", config["num_decoder_layers"])):
        biases = [f"{stack}.block.{i}.layer.0.SelfAttention.relative_attention_bias.weight" for i in range(num_blocks)]
        # In cs-1.6 every block has the table. In transformers and later releases only the first block has it.
        key = f"relative_position_{stack}.relative_attention_bias.weight"
        tensors.append(
            parts.plain(key, biases[0], f"{stack}/relative_attention_bias", copies={CS_OLD: tuple(biases[1:])})
        )
        kinds = [("self_attn", "SelfAttention", "self_attention")]
        if stack == "decoder":
            kinds.append(("multihead_attn", "EncDecAttention", "encoder_decoder_attention"))
        for i in range(num_blocks):
            block, theirs = f"{stack}.layers.{i}", f"{stack}.block.{i}.layer"
            for number, (key, name, scope) in enumerate(kinds):
                ours = f"{stack}/{parts.numbered(scope, i)}"
                for part, letter in (("q", "q"), ("k", "k"), ("v", "v"), ("output", "o")):
                    last = "output_transform" if part == "output" else f"{part}_projection"
                    layer = f"{block}.{key}.proj_{part}_dense_layer"
                    tensors += parts.linear(
                        layer, f"{theirs}.{number}.{name}.{letter}", f"{ours}/{last}", has_bias=False
                    )
            for number, name in enumerate(("wi", "wo")):
                dense: str | None = f"{stack}/{parts.numbered('ffn', i)}/{parts.numbered('dense_layer', dense_number)}"
                layer, hf = f"{block}.ffn.ffn.{number}.linear_layer", f"{theirs}.{len(kinds)}.DenseReluDense.{name}"
                if name == "wi" and str(config["feed_forward_proj"]).startswith(_GATED):
                    tensors += parts.linear(f"{layer}_for_glu", f"{hf}_0", None, has_bias=False)
                    hf, dense = f"{hf}_1", None
                tensors += parts.linear(layer, hf, dense, has_bias=False)
                dense_number += 1
            for number in range(len(kinds) + 1):
                scope = f"{stack}/{parts.numbered('layer_normalization_layer', norm_number)}"
                tensors += parts.norm(
                    f"{block}.norm{number + 1}", f"{theirs}.{number}.layer_norm", scope, has_bias=False
                )
                norm_number += 1
        scope = f"{stack}/{parts.numbered('layer_normalization_layer', norm_number)}"
        tensors += parts.norm(f"{stack}.norm", f"{stack}.final_layer_norm", scope, has_bias=False)
        norm_number += 1
    (head,) = parts.linear("lm_head", "lm_head", "lm_output_layer", has_bias=False)
    return [*tensors, parts.tied(head, _TABLE) if config["tie_word_embeddings"] else head]


def _transformer_tensors(config: Config) -> list[Tensor]:
    """Return T5's tensors untied, with separate embedding and position tables; biases and tables are optional."""
    tensors: list[Tensor] = []
    for stack in _STACKS:
        for old, name in (
            ("token_embedding.weight", "embeddings.word_embeddings.weight"),
            ("absolute_position_embedding.weight", "embeddings.position_embeddings.weight"),
            ("absolute_position_embedding", "embeddings.position_embeddings"),
        ):
            separator = "_" if old.startswith("token") else "."
            places = {CS: Place(f"{stack}_{name}"), CS_OLD: Place(f"{stack}{separator}{old}")}
            tensors.append(Tensor(f"{stack}_{name}", places, is_optional=True))
    for tensor in _t5_tensors(config):
        if tensor.key == _TABLE:
            continue
        is_optional = tensor.key.startswith(("relative_position", "lm_head"))
        tensors.append(replace(tensor, same_as=None, is_optional=is_optional))
        if ".norm" in tensor.key or "_dense_layer." in tensor.key or ".linear_layer." in tensor.key:
            places = {
                kind: Place(f"{place.name.removesuffix('weight')}bias")
                for kind, place in tensor.places.items()
                if kind in (CS, HF)
            }
            tensors.append(Tensor(f"{tensor.key.removesuffix('weight')}bias", places, is_optional=True))
    return tensors


def _read(config: Config, values: Config, kind: str) -> Config:
    settings: Config = {}
    if values["num_decoder_layers"] is None:
        settings["num_decoder_layers"] = values["num_layers"]
    if kind != CS:
        return settings
    encoder, decoder = values["feed_forward_proj"], config.get("decoder_nonlinearity", values["feed_forward_proj"])
    if encoder != decoder:
        raise ConfigConversionError(
            f"Encoder & Decoder nonlinearities must be the same in HF model. Got: {encoder} vs {decoder}"
        )
    for name, reference in (("tgt_vocab_size", "src_vocab_size"), ("relu_dropout_rate", "dropout_rate")):
        if config.get(name) is not None and config[name] != config.get(reference):
            raise ConfigConversionError(f"HF implementation doesn't allow {name} != {reference}")
    settings["feed_forward_proj"] = _gated_of_glu(encoder)
    # The Model Zoo's tables have extra rows for sentinels, which its vocabulary size does not count.
    return settings | {"vocab_size": values["vocab_size"] + config.get("extra_ids", 0)}


def _gated_of_glu(nonlinearity: str) -> str:
    """Return Hugging Face's name of a nonlinearity: "gated-silu" for swiglu."""
    glus = {glu: gated for gated, glu in _GLUS.items()}
    return glus.get(nonlinearity, nonlinearity)


def _write(values: Config, _target_values: Config, target: str) -> Config:
    nonlinearity = str(values["feed_forward_proj"])
    if nonlinearity.startswith(_GATED) and (nonlinearity not in _GLUS or (target != HF and release(target) < (2, 0))):
        raise ConfigConversionError(
            f"Can't convert config with feed_forward_proj={nonlinearity}. {target} has "
            + ("no feed-forward with a gate." if nonlinearity in _GLUS else f"only {', '.join(_GLUS)}.")
        )
    if family(target) != CS:
        return {}
    nonlinearity = _GLUS.get(nonlinearity, nonlinearity)
    # The original tool writes the position settings too, although relative positions do not use them.
    return {
        "encoder_nonlinearity": nonlinearity,
        "decoder_nonlinearity": nonlinearity,
        "src_max_position_embeddings": 512,
        "tgt_max_position_embeddings": 512,
    }


def _check_source(config: Config, source: str) -> None:
    """T5 has no norm before its stacks. The meaning of the setting was inverted in 1.8."""
    key, expected = "use_pre_encoder_decoder_layer_norm", source != "cs-1.7"
    if config.get(key, expected) != expected:
        raise ConfigConversionError(f"Can't convert config with {key}={config[key]}. Only {expected} is supported.")


_BUCKETS = "relative_attention_num_buckets"
T5 = Model(
    name="t5",
    tensors=_t5_tensors,
    config_keys=(
        ConfigKey("vocab_size", "src_vocab_size", "src_vocab_size", 32128),
        ConfigKey("d_model", "d_model", "d_model", 512),
        ConfigKey("d_kv", "d_kv", "d_kv", 64),
        ConfigKey("d_ff", "d_ff", "d_ff", 2048),
        ConfigKey("num_layers", "encoder_num_hidden_layers", "encoder_num_hidden_layers", 6),
        ConfigKey("num_decoder_layers", "decoder_num_hidden_layers", "decoder_num_hidden_layers", None),
        ConfigKey("num_heads", "num_heads", "num_heads", 8),
        ConfigKey(_BUCKETS, _BUCKETS, _BUCKETS, 32),
        ConfigKey("dropout_rate", "dropout_rate", "dropout_rate", 0.1),
        ConfigKey("layer_norm_epsilon", "layer_norm_epsilon", "layer_norm_epsilon", 1e-6, cs_default=1e-5),
        ConfigKey("feed_forward_proj", "encoder_nonlinearity", "nonlinearity", "relu"),
        ConfigKey("tie_word_embeddings", "share_embedding_weights", "share_embedding_weights", True),
    ),
    constants=(
        *parts.checked(HF, is_encoder_decoder=True, relative_attention_max_distance=128),
        *parts.checked(
            CS,
            use_projection_bias_in_attention=False,
            position_embedding_type="relative",
            use_dropout_outside_residual_path=True,
            share_encoder_decoder_embedding=True,
            use_pre_encoder_decoder_dropout=False,
            use_ffn_bias=False,
            use_transformer_initialization=False,
        ),
        *parts.since((2, 0), parts.written(norm_type="rmsnorm")),
        *parts.with_defaults(parts.checked(TF, relative_attention_max_distance=128, use_t5_layer_norm=True)),
    ),
    formats=(HF, CS_OLD, *parts.CS_FORMATS, TF),
    hf_class="T5ForConditionalGeneration",
    cs_class="T5ForConditionalGeneration",
    model_type="t5",
    read=_read,
    write=_write,
    check_source=_check_source,
    read_keys={
        CS: frozenset(
            {
                "decoder_nonlinearity",
                "tgt_vocab_size",
                "relu_dropout_rate",
                "extra_ids",
                "use_pre_encoder_decoder_layer_norm",
                "src_max_position_embeddings",
                "tgt_max_position_embeddings",
            }
        )
    },
    ignored={
        CS: parts.RUN_STATE,
        CS_OLD: rf"{parts.RUN_STATE}|shared\.weight|(encoder|decoder)\.embed_tokens\.weight",
        TF: parts.SLOTS,
    },
)
_TRANSFORMER = replace(
    T5,
    name="transformer",
    tensors=_transformer_tensors,
    formats=(CS_OLD, *parts.CS_FIRST_FORMATS),
    hf_class=None,
    cs_class="TransformerForConditionalGeneration",
)
MODELS = (T5, _TRANSFORMER)
