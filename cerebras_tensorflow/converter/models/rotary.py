"""Settings of rotary positions and of grouped attention heads, which Llama, Mistral and Falcon share."""

from __future__ import annotations

from typing import Any

from cerebras_tensorflow.converter.rules import Config, ConfigConversionError, release

THETA = 10000.0
# Type of scaling -> first release with it, and its settings besides type and factor; None: any.
_SCALINGS: dict[str, tuple[tuple[int, int], frozenset[str] | None]] = {
    "linear": ((2, 1), frozenset()),
    "yarn": ((2, 3), frozenset({"original_max_position_embeddings"})),
    "llama3": (
        (2, 3),
        frozenset({"low_freq_factor", "high_freq_factor", "original_max_position_embeddings"}),
    ),
    "longrope": ((2, 4), None),
}
HF_KEYS = frozenset({"rope_parameters", "rope_scaling"})
CS_KEYS = frozenset({"pos_scaling_factor", "pos_scaling_type", "pos_scaling_extra_args"})
GROUP_KEYS = frozenset({"attention_module", "extra_attention_params"})


def read_hf(config: Config) -> Config:
    """Return rope_theta and rope_scaling of a Hugging Face config; newer configs have both in `rope_parameters`."""
    rope = dict(config.get("rope_parameters") or {})
    settings = {"rope_theta": rope.pop("rope_theta")} if "rope_theta" in rope else {}
    scaling = dict(config.get("rope_scaling") or rope)
    kind = scaling.pop("rope_type", scaling.pop("type", None)) or "default"
    scaling.pop("type", None)
    if kind == "default":
        return settings | {"rope_scaling": None}
    if kind not in _SCALINGS:
        known = ", ".join(_SCALINGS)
        raise ConfigConversionError(f"Can't convert config with rope_type={kind}. Only default, {known} are supported.")
    return settings | {"rope_scaling": {"rope_type": kind, **scaling}}


def read_cs(config: Config) -> Config:
    """Return rope_scaling of a config of the PyTorch Model Zoo."""
    factor = config.get("pos_scaling_factor") or 1.0
    kind = config.get("pos_scaling_type") or ("linear" if factor != 1.0 else None)
    if kind is None:
        return {"rope_scaling": None}
    if kind not in _SCALINGS:
        known = ", ".join(_SCALINGS)
        raise ConfigConversionError(f"Can't convert config with pos_scaling_type={kind}. Only {known} are supported.")
    extra = config.get("pos_scaling_extra_args") or {}
    return {"rope_scaling": {"rope_type": kind, "factor": factor, **extra}}


def write_cs(values: Config, target: str) -> Config:
    """Return the target's settings of the rotary base and its scaling.

    Raises:
        ConfigConversionError: If the release has no such setting.
    """
    scaling = dict(values["rope_scaling"] or {})
    kind = scaling.pop("rope_type", None)
    if release(target) < (2, 1):
        only("rope_theta", values["rope_theta"], THETA)
        only("rope_type", kind or "default", "default")
        return {}
    settings: Config = {"rope_theta": values["rope_theta"], "pos_scaling_factor": 1.0}
    if kind is None:
        return settings
    first, known = _SCALINGS[kind]
    if release(target) < first:
        raise ConfigConversionError(
            f"Can't convert config with rope_type={kind}. It was introduced in cs-{first[0]}.{first[1]}."
        )
    settings |= {"pos_scaling_factor": scaling.pop("factor", 1.0), "pos_scaling_type": kind}
    unknown = set(scaling) - (known if known is not None else set(scaling))
    if unknown:
        raise ConfigConversionError(f"Can't convert config with {', '.join(sorted(unknown))} of rope_type={kind}.")
    return settings | ({"pos_scaling_extra_args": scaling} if scaling else {})


def write_hf(values: Config) -> Config:
    """Return Hugging Face's settings for the scaling."""
    scaling = values["rope_scaling"]
    if scaling is None:
        return {"rope_scaling": None}
    kind = scaling["rope_type"]
    rest = {key: value for key, value in scaling.items() if key != "rope_type"}
    return {"rope_scaling": {"rope_type" if kind == "llama3" else "type": kind, **rest}}


def read_groups(config: Config) -> Any:
    """Return the number of key-value heads in a config of the PyTorch Model Zoo; None: one for each head."""
    return (config.get("extra_attention_params") or {}).get("num_kv_groups")


def write_groups(num_groups: int, num_heads: int, target: str) -> Config:
    """Return the settings of key-value heads that several heads share.

    Raises:
        ConfigConversionError: If the release has no such setting, or the heads do not divide evenly.
    """
    if num_heads % num_groups:
        raise ConfigConversionError(
            f"Can't convert config with num_key_value_heads={num_groups}. It must divide num_attention_heads="
            f"{num_heads}."
        )
    if release(target) < (2, 0):
        only("num_key_value_heads", num_groups, num_heads)
    if num_groups == num_heads:
        return {}
    return {"attention_module": "multiquery_attention", "extra_attention_params": {"num_kv_groups": num_groups}}


def only(key: str, value: Any, allowed: Any) -> None:
    """Raise ConfigConversionError if a setting has a value that the target's release cannot hold."""
    if value != allowed:
        raise ConfigConversionError(f"Can't convert config with {key}={value}. Only {allowed} is supported.")
