"""What a table of name rules is made of.

Each tensor of a model has one canonical value: the PyTorch Model Zoo's, a linear layer as (outputs, inputs). A table
says for each format under which name and in which layout that value is stored; conversion reads it either way.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
Config = dict[str, Any]

HF, CS, TF = "hf", "cs", "tf"


@dataclass(frozen=True)
class Layout:
    """How a stored tensor and canonical values follow from each other.

    Attributes:
        parts: Canonical values in one stored tensor.
        split: Stored -> the canonical value of a part.
        join: Canonical values of all parts -> stored.
    """

    parts: int
    split: Callable[[Array, int, Config], Array]
    join: Callable[[list[Array], Config], Array]


PLAIN = Layout(1, lambda stored, _part, _config: stored, lambda parts, _config: parts[0])
TRANSPOSED = Layout(1, lambda stored, _part, _config: stored.T, lambda parts, _config: parts[0].T)


def _third(stored: Array, part: int) -> Array:
    size = stored.shape[-1] // 3
    return stored[..., part * size : (part + 1) * size].T


# GPT-2 in Hugging Face: q, k and v beside each other in one (inputs, 3 outputs), its bias in one (3 outputs,).
THIRDS = Layout(
    3,
    lambda stored, part, _config: _third(stored, part),
    lambda parts, _config: np.concatenate([part.T for part in parts], axis=-1),
)


def _pairs_from_halves(rows: Array, config: Config) -> Array:
    """Rows of each head from (first halves, second halves) to pairs, the order that rotary positions take in CS."""
    heads = rows.shape[0] // config["head_size"]
    shaped = rows.reshape(heads, 2, config["head_size"] // 2, *rows.shape[1:])
    return np.swapaxes(shaped, 1, 2).reshape(rows.shape)


def _halves_from_pairs(rows: Array, config: Config) -> Array:
    heads = rows.shape[0] // config["head_size"]
    shaped = rows.reshape(heads, config["head_size"] // 2, 2, *rows.shape[1:])
    return np.swapaxes(shaped, 1, 2).reshape(rows.shape)


# Llama's q and k: rotation pairs lie half a head apart in Hugging Face and in our TensorFlow model, side by side in CS.
HALVES = Layout(
    1,
    lambda stored, _part, config: _pairs_from_halves(stored, config),
    lambda parts, config: _halves_from_pairs(parts[0], config),
)
HALVES_TRANSPOSED = Layout(
    1,
    lambda stored, _part, config: _pairs_from_halves(stored.T, config),
    lambda parts, config: _halves_from_pairs(parts[0], config).T,
)


@dataclass(frozen=True)
class Place:
    """Where one format stores a canonical value."""

    name: str
    layout: Layout = PLAIN
    part: int = 0


@dataclass(frozen=True)
class Tensor:
    """One canonical value and its places.

    Attributes:
        key: Its name in the PyTorch Model Zoo, and ours for it.
        places: Format -> place; a format without one does not store it.
        same_as: Key of a value that stands in where the source does not store this one (tied weights).
    """

    key: str
    places: dict[str, Place] = field(default_factory=dict)
    same_as: str | None = None


@dataclass(frozen=True)
class ConfigKey:
    """One setting under its name in each format; None where a format does not have it."""

    hf: str | None
    cs: str | None
    tf: str | None = None
    default: Any = None  # of the Hugging Face config


@dataclass(frozen=True)
class Constant:
    """A setting of one format that must have one value, because the other formats cannot say anything else."""

    format: str
    key: str
    value: Any
    is_written: bool = False  # also put into converted configs


@dataclass(frozen=True)
class Model:
    """One model: its tensors as a function of the config, its settings, and words about it."""

    name: str
    tensors: Callable[[Config], list[Tensor]]  # takes the config under Hugging Face's names
    config_keys: tuple[ConfigKey, ...]
    constants: tuple[Constant, ...]
    formats: tuple[str, ...]
    hf_prefix: str  # of the tensors in a file of the model with its head; files may also lack it
    hf_class: str
    cs_class: str
    ignored: dict[str, str] = field(default_factory=dict)  # format -> pattern of names that carry no weight
    # CS stores some values twice: copy -> key.
    cs_copies: dict[str, str] = field(default_factory=dict)
    has_head: bool = True
