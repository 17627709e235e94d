"""Configs between releases of the PyTorch Model Zoo: cs-1.7 and cs-1.8 mean different things by a few settings.

Checkpoints of the one load in the other as they are, once the config says what they were trained with.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cerebras_tensorflow.converter.configs import ConfigConversionError

Section = dict[str, Any]

OLD, NEW = "cs-1.7", "cs-1.8"


def _bert_config(model: Section, is_upgrade: bool) -> Section:
    """1.7: pooler and masked-token head follow rules; 1.8: each has a setting."""
    encoder = model.get("encoder_nonlinearity")
    if encoder is None:
        raise ConfigConversionError(
            "the config lacks encoder_nonlinearity, which decides what the pooler had in cs-1.7"
        )
    if is_upgrade:
        return model | {"pooler_nonlinearity": encoder, "mlm_nonlinearity": "gelu"}
    pooler, head = model.get("pooler_nonlinearity", encoder), model.get("mlm_nonlinearity", encoder)
    if pooler != encoder:
        raise ConfigConversionError(
            f"pooler_nonlinearity was introduced in cs-1.8; before, it had to be encoder_nonlinearity, so {pooler} "
            f"cannot be expressed. Only {encoder} is supported."
        )
    if head != "gelu":
        raise ConfigConversionError(
            f"mlm_nonlinearity was introduced in cs-1.8; before, it had to be gelu, so {head} cannot be expressed. "
            "Only gelu is supported."
        )
    return model


def _t5_config(model: Section, _is_upgrade: bool) -> Section:
    """The setting changed its meaning to the opposite."""
    key = "use_pre_encoder_decoder_layer_norm"
    return model | {key: not model[key]} if key in model else model


_RULES: dict[str, Callable[[Section, bool], Section]] = {
    "bert": _bert_config,
    "bert-sequence-classifier": _bert_config,
    "bert-token-classifier": _bert_config,
    "bert-q&a": _bert_config,
    "bert-summarization": _bert_config,
    "t5": _t5_config,
    "transformer": _t5_config,
}
MODELS = tuple(sorted(_RULES))


def is_supported(model: str, source: str, target: str) -> bool:
    """Whether a model has a rule between two releases."""
    return model in _RULES and {source, target} == {OLD, NEW}


def convert_config(model: str, content: Section, source: str) -> Section:
    """Return a whole params file of the other release; all sections but `model` stay.

    Raises:
        ConfigConversionError: If the release cannot express a setting.
    """
    return content | {"model": _RULES[model](dict(content["model"]), source == OLD)}
