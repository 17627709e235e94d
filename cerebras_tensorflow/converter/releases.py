"""Conversions between releases of the PyTorch Model Zoo: changed settings, and the tensor names of cs-1.6.

After 1.7 only configs change, not names. The rules of 1.6 are those of 1.7, except for the names of tensors.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from cerebras_tensorflow.converter.configs import dimensions
from cerebras_tensorflow.converter.convert import Conversion
from cerebras_tensorflow.converter.rules import CS_OLD, REQUIRED, Config, ConfigConversionError, Model
from cerebras_tensorflow.converter.torch_file import Leaf, TorchReader
from cerebras_tensorflow.saver.interface import TensorReader

logger = logging.getLogger(__name__)

_NEW = "cs-1.8"
RELEASES = (CS_OLD, "cs-1.7", _NEW)


def _bert_config(model: Config, is_upgrade: bool) -> Config:
    """In 1.7 the nonlinearities of pooler and masked-token head are fixed; in 1.8 each has a setting."""
    encoder = model.get("encoder_nonlinearity")
    if encoder is None:
        raise ConfigConversionError("the config lacks encoder_nonlinearity, which the pooler also uses in cs-1.7")
    if is_upgrade:
        return model | {"pooler_nonlinearity": encoder, "mlm_nonlinearity": "gelu"}
    # If absent or null, they are the encoder's.
    pooler, head = (model.get(key) or encoder for key in ("pooler_nonlinearity", "mlm_nonlinearity"))
    if pooler != encoder:
        raise ConfigConversionError(
            "pooler_nonlinearity was introduced in CS 1.8. Before that, it had to be the same as "
            f"encoder_nonlinearity, but got {pooler}. Only {encoder} is supported."
        )
    if head != "gelu":
        raise ConfigConversionError(
            f"mlm_nonlinearity was introduced in CS 1.8. Before that, it had to be gelu, but got {head}. Only gelu is "
            "supported."
        )
    return model


def _t5_config(model: Config, _is_upgrade: bool) -> Config:
    """In 1.8 the meaning of this setting was inverted."""
    key = "use_pre_encoder_decoder_layer_norm"
    return model | {key: not model[key]} if key in model else model


def _rule(name: str) -> Callable[[Config, bool], Config]:
    return _t5_config if name in ("t5", "transformer") else _bert_config


def is_between_releases(model: Model, source: str, target: str) -> bool:
    """Whether a model can be converted between two formats that are releases."""
    return CS_OLD in model.formats and source in RELEASES and target in RELEASES and source != target


def pairs(model: Model) -> list[tuple[str, str]]:
    """Return the pairs of releases between which a model can be converted, in one direction."""
    return [
        (first, second)
        for number, first in enumerate(RELEASES)
        for second in RELEASES[number + 1 :]
        if is_between_releases(model, first, second)
    ]


def convert_config(model: Model, content: Config, source: str, target: str) -> Config:
    """Return the content of a params file for the other release; only its section `model` changes.

    Raises:
        ConfigConversionError: If the release cannot express a setting.
    """
    section = dict(content["model"])
    if _NEW in (source, target):
        section = _rule(model.name)(section, target == _NEW)
    return content | {"model": section}


def conversion(
    model: Model, section: Config, reader: TensorReader, source: str, target: str, drop_unmatched_keys: bool
) -> Conversion:
    """Return the conversion of a checkpoint from or to cs-1.6: it renames the model's tensors, and drops all else.

    Raises:
        ConfigConversionError: If the config does not say how many layers there are.
        CheckpointError: As `Conversion`.
    """
    values = dimensions(model, section, "cs-1.8")
    if values.get("num_decoder_layers", 0) is None:
        values["num_decoder_layers"] = values["num_layers"]
    missing = [key.cs for key in model.config_keys if key.hf.endswith("layers") and values[key.hf] is REQUIRED]
    if missing:
        raise ConfigConversionError(f"the config lacks {', '.join(map(str, missing))}")
    if any(name.startswith("optimizer.") for name in reader.names()):
        logger.warning("the optimizer state is left out: %s and %s store it in different orders", source, target)
    return Conversion(model, values, reader, source, target, drop_unmatched_keys)


def renamed_tree(model: Model, reader: TorchReader, target: str) -> Any:
    """Return the content of a torch file, renamed for a target of cs-1.7 or cs-1.8."""
    tree = reader.tree
    if not _loses_prefix(model, target):
        return tree
    state = tree.get("model", tree)
    bare = {name.removeprefix("model."): value for name, value in state.items()}
    return tree | {"model": bare} if "model" in tree else bare


def renamed(model: Model, reader: TensorReader, target: str) -> Iterator[tuple[str, Any]]:
    """Yield the tensors of an HDF5 file, renamed for a target of cs-1.7 or cs-1.8."""
    for name in reader.names():
        new = name.replace("model.model.", "model.", 1) if _loses_prefix(model, target) else name
        yield new, reader.read(name)


def flattened(
    tree: Any, reader: TensorReader, prefix: str = "", with_numbers: bool = True
) -> Iterator[tuple[str, Any]]:
    """Yield the tensors and numbers of nested content with dotted names, as HDF5 stores them."""
    if isinstance(tree, (dict, list, tuple)):
        items = tree.items() if isinstance(tree, dict) else enumerate(tree)
        for key, value in items:
            yield from flattened(value, reader, f"{prefix}.{key}" if prefix else str(key), with_numbers)
    elif isinstance(tree, Leaf):
        yield prefix, reader.read(tree.name)
    elif with_numbers and isinstance(tree, (bool, int, float)):
        yield prefix, np.asarray(tree)


def _loses_prefix(model: Model, target: str) -> bool:
    """In 1.7 the names of T5 lack the prefix `model.`; BERT's readers accept both forms."""
    return target == RELEASES[1] and model.name in ("t5", "transformer")
