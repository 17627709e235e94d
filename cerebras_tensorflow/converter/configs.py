"""Converting model configs between the names of two formats, with the tables in models/.

Every config is first converted to Hugging Face's names, with all defaults filled in.
"""

from __future__ import annotations

import logging
from typing import Any

from cerebras_tensorflow.converter.rules import (
    CS,
    HF,
    REQUIRED,
    TF,
    Config,
    ConfigConversionError,
    ConfigKey,
    Model,
    family,
    release,
)

logger = logging.getLogger(__name__)

# Settings of muP, which scale activations, and the values at which they do nothing. Other formats have no such scales.
# `_MUP_SWITCH` has an effect only together with a base width.
_MUP: dict[str, tuple[Any, ...]] = {
    "output_logits_scale": (None, 1, 1.0),
    "embeddings_scale": (None, 1, 1.0),
    "scale_qk_dot_by_d": (None, False),
    "mup_base_hidden_size": (None,),
    "mup_base_filter_size": (None,),
    "output_logits_alpha": (None, 1, 1.0),
    "attention_logits_alpha": (None, 1, 1.0),
}
_MUP_SWITCH = "scale_output_logits_by_d"


def to_hf(model: Model, config: Config, source: str) -> Config:
    """Return a config under Hugging Face's names, defaults filled in.

    Args:
        model: The model's table.
        config: The content of the file; for cs and tf, its section `model`.
        source: The format of the config.

    Raises:
        ConfigConversionError: If a setting is missing, or has a value that the other formats cannot express.
    """
    kind = family(source)
    _check_constants(model, config, source)
    if kind == CS:
        _check_mup(config)
        model.check_source(config, source)
    values = dimensions(model, config, source)
    missing = [key for key in model.config_keys if values[key.hf] is REQUIRED]
    if missing:
        raise ConfigConversionError(f"the config lacks {', '.join(str(getattr(key, kind)) for key in missing)}")
    values |= model.read(config, values, kind)
    for hidden, heads in (("hidden_size", "num_attention_heads"), ("n_embd", "n_head")):
        if heads in values:
            values["head_size"] = values[hidden] // values[heads]
    return values


def dimensions(model: Model, config: Config, source: str) -> Config:
    """Return a config's settings and the defaults of the others, under Hugging Face's names, without checks.

    The value of a missing setting without a default is `REQUIRED`.
    """
    kind = family(source) if family(source) in (HF, TF) else CS
    values: Config = {}
    for key in model.config_keys:
        name = getattr(key, kind)
        stated = config.get(name) if name is not None else None
        values[key.hf] = _default(key, kind) if stated is None else stated
    return values


def unmatched(model: Model, config: Config, source: str) -> list[str]:
    """Return the keys of a config that no rule covers; converted configs lack them."""
    kind = family(source)
    known = {getattr(key, kind) for key in model.config_keys} | model.read_keys.get(kind, frozenset())
    known |= {item.key for item in model.constants if item.format == kind} | (
        {"name", _MUP_SWITCH, *_MUP} if kind == CS else set()
    )
    return [] if kind == TF else [key for key in config if key not in known]


def matches(model: Model, config: Config, source: str, target: str) -> list[str]:
    """Return the lines that --debug prints: each key of a config and its name in the target."""
    kinds = [family(name) if family(name) in (HF, TF) else CS for name in (source, target)]
    names = {getattr(key, kinds[0]): getattr(key, kinds[1]) for key in model.config_keys}
    return [f"Matched {name} -> {names[name]} action: None" for name in config if names.get(name) is not None]


def from_hf(model: Model, config: Config, target: str) -> Config:
    """Return the content of a config file in another format, from settings under Hugging Face's names.

    Raises:
        ConfigConversionError: If the format cannot express a setting.
    """
    kind = family(target)
    values = {getattr(key, kind): config[key.hf] for key in model.config_keys if getattr(key, kind) is not None}
    if kind == HF:
        words = {"architectures": [model.hf_class], "model_type": model.model_type}
        return words | values | model.write(config, values, target)
    values |= {item.key: item.value for item in model.constants if item.is_in(target) and item.is_written}
    values |= model.write(config, values, target)
    # Since 2.4, precision is a setting of the trainer, and the config names the model.
    if kind == CS:
        values |= (
            {"mixed_precision": True}
            if release(target) < (2, 4)
            else {"name": model.cs_name or model.name.removesuffix("-headless")}
        )
    return {"model": values}


def _default(key: ConfigKey, kind: str) -> Any:
    if kind == CS and key.cs is not None and key.cs_default is not REQUIRED:
        return key.cs_default
    return key.default


def _check_mup(config: Config) -> None:
    for key, neutral in _MUP.items():
        if config.get(key) not in neutral:
            raise ConfigConversionError(
                f"Can't convert config with {key}={config[key]}. It is a scale of muP, which only the releases of the "
                f"PyTorch Model Zoo have; without it the model would compute other logits. Only {neutral[-1]} is "
                "supported."
            )


def _check_constants(model: Model, config: Config, source: str) -> None:
    kind = family(source)
    known = {getattr(key, kind) for key in model.config_keys} | model.read_keys.get(kind, frozenset())
    known |= {item.key for item in model.constants if item.format == kind}
    for item in model.constants:
        if item.format != kind:
            # Only the other format has this setting, so the file or the given format is wrong.
            if {item.format, kind} == {HF, CS} and item.key in config and item.key not in known:
                raise ConfigConversionError(f"{item.key} should not appear in the config")
            continue
        if not item.is_in(source):
            continue
        value = config.get(item.key, item.default if item.default is not None else item.value)
        if value != item.value:
            raise ConfigConversionError(
                f"Can't convert config with {item.key}={value}. Only {item.value} is supported."
                + ("" if item.key in config else " (The config does not say; that is the default.)")
            )


def warn_unmatched(model: Model, config: Config, source: str) -> None:
    """Log the keys that are left out."""
    for key in unmatched(model, config, source):
        logger.warning("Key not matched: %s", key)
