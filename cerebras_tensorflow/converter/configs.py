"""Model configs from one format's names into another's, by the tables in models.py.

Every config passes through Hugging Face's names, with all defaults filled in.
"""

from __future__ import annotations

from typing import Any

from cerebras_tensorflow.converter.rules import CS, HF, TF, Config, Model
from cerebras_tensorflow.errors import CerebrasError

_GATED = {"silu": "swiglu", "relu": "reglu", "gelu": "geglu"}  # llama: hidden_act <-> nonlinearity of CS
_ARCHITECTURES = {"gpt2": "gpt2", "gptj": "gptj", "bert": "bert", "t5": "t5", "llama": "llama"}


class ConfigConversionError(CerebrasError):
    """A config that the target format cannot express."""


def family(format_name: str) -> str:
    """Return the kind of a format: hf, cs or tf."""
    return CS if format_name.startswith("cs-") else format_name


def to_hf(model: Model, config: Config, source: str) -> Config:
    """Return a config under Hugging Face's names, defaults filled in.

    Args:
        model: Its table.
        config: As the file holds it; of cs and tf the section `model`.
        source: Format.

    Raises:
        ConfigConversionError: If a setting has a value that the other formats cannot express, or is missing.
    """
    kind = family(source)
    for constant in model.constants:
        if constant.format == kind and constant.key in config and config[constant.key] != constant.value:
            raise ConfigConversionError(
                f"Can't convert config with {constant.key}={config[constant.key]}. Only {constant.value} is supported."
            )
    result: Config = {}
    for key in model.config_keys:
        name = getattr(key, kind)
        if name is not None and config.get(name) is not None:
            result[str(key.hf)] = config[name]
        else:
            result[str(key.hf)] = key.default
    _check_activation(model, config, result, kind)
    if "n_inner" in result and result["n_inner"] is None and result.get("n_embd"):
        result["n_inner"] = 4 * result["n_embd"]
    if "num_decoder_layers" in result and result["num_decoder_layers"] is None:
        result["num_decoder_layers"] = result["num_layers"]
    if "num_key_value_heads" in result and result["num_key_value_heads"] is None:
        result["num_key_value_heads"] = result["num_attention_heads"]
    if kind == HF and isinstance(config.get("rope_parameters"), dict):
        rope = config["rope_parameters"]
        if rope.get("rope_type", "default") != "default":
            raise ConfigConversionError(
                f"Can't convert config with rope_type={rope['rope_type']}. Only default is supported."
            )
        result["rope_theta"] = rope.get("rope_theta", result["rope_theta"])
    missing = [str(key.hf) for key in model.config_keys if result[str(key.hf)] is None]
    if missing:
        names = ", ".join(
            str(next(getattr(key, kind) for key in model.config_keys if key.hf == name)) for name in missing
        )
        raise ConfigConversionError(f"the config lacks {names}")
    if "num_attention_heads" in result:
        result["head_size"] = result["hidden_size"] // result["num_attention_heads"]
    return result


def from_hf(model: Model, config: Config, target: str) -> Config:
    """Return a config in another format's names, as its file holds it.

    Raises:
        ConfigConversionError: If the format cannot express a setting.
    """
    kind = family(target)
    values = {getattr(key, kind): config[str(key.hf)] for key in model.config_keys if getattr(key, kind) is not None}
    base = model.name.removesuffix("-headless")
    if kind == HF:
        architecture = {"architectures": [model.hf_class], "model_type": _ARCHITECTURES[base]}
        return architecture | values | ({"rotary": True} if base == "gptj" else {})
    if kind == CS:
        values |= {item.key: item.value for item in model.constants if item.format == CS and item.is_written}
        if base == "llama":
            _to_cs_llama(config, values)
        if base == "bert":
            values["mlm_nonlinearity"] = values["encoder_nonlinearity"]
            if target == "cs-1.7":
                del values["pooler_nonlinearity"], values["mlm_nonlinearity"]
        if base == "t5":
            values["decoder_nonlinearity"] = values["encoder_nonlinearity"]
            # The original's converter writes these; relative positions do not use them.
            values |= {"src_max_position_embeddings": 512, "tgt_max_position_embeddings": 512}
        values["mixed_precision"] = True
    if kind == TF and base == "gpt2" and config["embd_pdrop"] != config["resid_pdrop"]:
        raise ConfigConversionError(
            f"Can't convert config with embd_pdrop={config['embd_pdrop']}. "
            f"Only {config['resid_pdrop']} (resid_pdrop) is supported."
        )
    return {"model": values}


def _to_cs_llama(config: Config, values: Config) -> None:
    for name, allowed in (("num_key_value_heads", config["num_attention_heads"]), ("rope_theta", 10000.0)):
        if config[name] != allowed:
            raise ConfigConversionError(
                f"Can't convert config with {name}={config[name]}. Only {allowed} is supported."
            )
    if config["hidden_act"] not in _GATED:
        raise ConfigConversionError(f"{config['hidden_act']} is not a GLU-able activation in CS")
    values["nonlinearity"] = _GATED[config["hidden_act"]]
    values["rotary_dim"] = config["head_size"]


def _check_activation(model: Model, config: Config, result: dict[str, Any], kind: str) -> None:
    base = model.name.removesuffix("-headless")
    if base == "llama" and kind == CS:
        plain = {gated: name for name, gated in _GATED.items()}
        if result["hidden_act"] not in plain:
            raise ConfigConversionError(f"{result['hidden_act']} is not a supported GLU activation in HF")
        result["hidden_act"] = plain[result["hidden_act"]]
        if "rotary_dim" not in config:
            raise ConfigConversionError("rotary_dim must be specified")
        if config["rotary_dim"] != result["hidden_size"] // result["num_attention_heads"]:
            raise ConfigConversionError(
                f"Can't convert config with rotary_dim={config['rotary_dim']}. Only hidden_size // num_heads = "
                f"{result['hidden_size'] // result['num_attention_heads']} is supported."
            )
    if base == "bert" and kind == CS and config.get("mlm_nonlinearity", result["hidden_act"]) != result["hidden_act"]:
        raise ConfigConversionError("HF model doesn't support different encoder & mlm nonlinearities")
    if base == "t5" and kind == CS:
        _check_cs_t5(config, result)
    if base == "gptj" and kind == HF and config.get("rotary", True) is not True:
        raise ConfigConversionError(f"HF GPT-J must use rotary embeddings, but got rotary={config['rotary']}")


def _check_cs_t5(config: Config, result: dict[str, Any]) -> None:
    encoder, decoder = result["feed_forward_proj"], config.get("decoder_nonlinearity", result["feed_forward_proj"])
    if encoder != decoder:
        raise ConfigConversionError(
            f"Encoder & Decoder nonlinearities must be the same in HF model. Got: {encoder} vs {decoder}"
        )
    for name, reference in (("tgt_vocab_size", "src_vocab_size"), ("relu_dropout_rate", "dropout_rate")):
        if config.get(name) is not None and config[name] != config.get(reference):
            raise ConfigConversionError(f"HF implementation doesn't allow {name} != {reference}")
