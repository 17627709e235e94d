"""Conversions between releases of the PyTorch Model Zoo, from any to any: configs, and names of tensors.

1.6 has names of its own, 2.1 changed a few, and the other releases change configs only (release_rules.py).
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from cerebras_tensorflow.converter import release_rules
from cerebras_tensorflow.converter.configs import dimensions
from cerebras_tensorflow.converter.convert import Conversion
from cerebras_tensorflow.converter.rules import (
    MASK_SUFFIX,
    REQUIRED,
    Config,
    ConfigConversionError,
    Model,
    moved,
    moved_back,
    release,
)
from cerebras_tensorflow.converter.torch_file import Leaf, TorchReader
from cerebras_tensorflow.saver.interface import TensorReader

logger = logging.getLogger(__name__)

_NEW = "cs-1.8"
_PREFIX = "model."
_METADATA = "__metadata__"
# First release whose checkpoints have a list of the releases that wrote them; since 2.5 loaders compare the last one.
_FIRST_WITH_METADATA = (2, 2)


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


def _1_8_rule(name: str) -> Callable[[Config, bool], Config]:
    """Return what 1.8 changed in the settings of a model."""
    if name in ("t5", "transformer"):
        return _t5_config
    return _bert_config if name.startswith("bert") else lambda model, _is_upgrade: model


def is_between_releases(model: Model, source: str, target: str) -> bool:
    """Whether a model can be converted between two formats that are releases."""
    return {source, target} <= set(model.formats) and source != target and min(map(release, (source, target))) > (0, 0)


def pairs(model: Model) -> list[tuple[str, str]]:
    """Return the pairs of releases between which a model can be converted, in one direction."""
    return [
        (first, second)
        for number, first in enumerate(model.formats)
        for second in model.formats[number + 1 :]
        if is_between_releases(model, first, second)
    ]


def convert_config(model: Model, content: Config, source: str, target: str) -> Config:
    """Return the content of a params file for another release.

    Raises:
        ConfigConversionError: If the release cannot express a setting.
    """
    is_newer = release(source) < release(target)
    is_over_1_8 = min(release(source), release(target)) < release(_NEW) <= max(release(source), release(target))
    if is_over_1_8 and is_newer:
        content = content | {"model": _1_8_rule(model.name)(dict(content["model"]), True)}
    content = release_rules.convert(content, model.name, release(source), release(target))
    if is_over_1_8 and not is_newer:
        content = content | {"model": _1_8_rule(model.name)(content["model"], False)}
    return content


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


def written_by(reader: TensorReader) -> str:
    """Return the format of a checkpoint, from the list of releases that wrote it; only releases since 2.2 write one.

    Raises:
        ConfigConversionError: If it has no such list.
    """
    entries = reader.tree.get(_METADATA) if isinstance(reader, TorchReader) and isinstance(reader.tree, dict) else None
    last = entries[-1] if isinstance(entries, list | tuple) and entries else None
    match = re.match(r"\d+\.\d+", str(last.get("version"))) if isinstance(last, dict) else None
    if match is None:
        raise ConfigConversionError(
            f"{reader.path} does not say which release wrote it. Give the release instead of cs-auto, as in "
            "--src-fmt cs-2.1"
        )
    return f"cs-{match[0]}"


def renamed_tree(model: Model, reader: TorchReader, source: str, target: str) -> Any:
    """Return the content of a torch file, renamed for another release since cs-1.7."""
    tree = reader.tree
    state = tree.get("model", tree)
    rename = _renaming(model, source, target)
    state = {rename(name): value for name, value in state.items()}
    if "model" not in tree:
        return state
    tree = tree | {"model": state}
    if release(target) >= _FIRST_WITH_METADATA or _METADATA in tree:
        written = tree.get(_METADATA)
        entry = {"version": f"{target.removeprefix('cs-')}.0", "model_name": model.name, "params": {}}
        tree[_METADATA] = [*(written if isinstance(written, list | tuple) else ()), entry]
    return tree


def renamed(model: Model, reader: TensorReader, source: str, target: str) -> Iterator[tuple[str, Any]]:
    """Yield the tensors of an HDF5 file, renamed for another release since cs-1.7."""
    rename = _renaming(model, source, target)
    for name in reader.names():
        is_weight = name.startswith(_PREFIX)
        yield _PREFIX + rename(name.removeprefix(_PREFIX)) if is_weight else name, reader.read(name)


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


def _renaming(model: Model, source: str, target: str) -> Callable[[str], str]:
    """Return the function from a weight's name to its name in another release.

    In 1.7 the names of T5 lack the prefix `model.`; BERT's readers accept both forms.
    """
    loses_prefix = target == "cs-1.7" and model.name in ("t5", "transformer")
    is_over_2_1 = min(release(source), release(target)) < (2, 1) <= max(release(source), release(target))
    new_name = moved if release(source) < release(target) else moved_back

    def rename(name: str) -> str:
        bare = name.removeprefix(_PREFIX)
        prefix = "" if loses_prefix else name[: len(name) - len(bare)]
        if not is_over_2_1:
            return prefix + bare
        weight = bare.removesuffix(MASK_SUFFIX)
        return prefix + new_name(weight) + bare[len(weight) :]

    return rename
