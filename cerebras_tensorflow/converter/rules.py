"""The parts of a table of name rules.

Each tensor of a model has one canonical value, as the PyTorch Model Zoo stores it: a linear layer is (outputs, inputs).
For each kind of format, a table gives the name and layout of the stored value. A table serves both directions.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from cerebras_tensorflow.converter.layouts import PLAIN, Layout
from cerebras_tensorflow.errors import CerebrasError

Config = dict[str, Any]

# Kinds of formats. Since 1.7, releases of the PyTorch Model Zoo use the same names, except `_MOVED`. Earlier names are
# close to HF's.
HF, CS, CS_OLD, TF = "hf", "cs", "cs-1.6", "tf"

MASK_SUFFIX = "_mask"
"""Ending of the name of a weight's mask, in our checkpoints and in those of the published releases since 2.0."""

Release = tuple[int, int]
# Names that 2.1 changed: (pattern, replacement), and the same backwards.
_HELPER = "embedding_layer.position_embed_helper"
_MOVED = (
    (r"((?:.*[._])?position_embeddings)\.weight", r"\1.embed.weight"),
    (r"((?:.*[._])?position_embeddings)", r"\1.fpe"),
    (r"relative_position_(\w+)\.(relative_attention_bias\.\w+)", r"\1_embeddings.position_embed_helper.\2"),
    (r"relative_pe_helper\.(relative_attention_bias\.\w+|slopes)", rf"{_HELPER}.\1"),
)
_MOVED_BACK = (
    (r"((?:.*[._])?position_embeddings)\.embed\.weight", r"\1.weight"),
    (r"((?:.*[._])?position_embeddings)\.fpe", r"\1"),
    (r"(encoder|decoder)_embeddings\.position_embed_helper\.(.*)", r"relative_position_\1.\2"),
    (rf"{re.escape(_HELPER)}\.(.*)", r"relative_pe_helper.\1"),
)


class ConfigConversionError(CerebrasError):
    """A config that the target format cannot express."""


def family(format_name: str) -> str:
    """Return the kind of a format.

    >>> family("cs-1.8"), family("cs-1.6"), family("hf")
    ('cs', 'cs-1.6', 'hf')
    """
    return CS if format_name.startswith("cs-") and format_name != CS_OLD else format_name


def release(format_name: str) -> Release:
    """Return the release of a format of the PyTorch Model Zoo; (0, 0) for the other formats.

    >>> release("cs-2.1"), release("hf")
    ((2, 1), (0, 0))
    """
    match = re.fullmatch(r"cs-(\d+)\.(\d+)", format_name)
    return (int(match[1]), int(match[2])) if match else (0, 0)


def moved(name: str) -> str:
    """Return the name since release 2.1 of a tensor, from its name before 2.1.

    >>> moved("embedding_layer.position_embeddings.weight")
    'embedding_layer.position_embeddings.embed.weight'
    """
    return _substituted(name, _MOVED)


def moved_back(name: str) -> str:
    """Return the name before release 2.1 of a tensor, from its name since then.

    >>> moved_back("encoder_embeddings.position_embed_helper.relative_attention_bias.weight")
    'relative_position_encoder.relative_attention_bias.weight'
    """
    return _substituted(name, _MOVED_BACK)


def _substituted(name: str, rules: tuple[tuple[str, str], ...]) -> str:
    for pattern, replacement in rules:
        if re.fullmatch(pattern, name):
            return re.sub(f"^{pattern}$", replacement, name)
    return name


@dataclass(frozen=True)
class Place:
    """The name and layout under which one kind of format stores a canonical value."""

    name: str
    layout: Layout = PLAIN
    part: int = 0


@dataclass(frozen=True)
class Tensor:
    """One canonical value and its places.

    Attributes:
        key: Its name in the PyTorch Model Zoo, which identifies it here.
        places: Kind of format -> place. A kind without a place does not store it.
        same_as: Key of the equal value to use if the source does not store this one (tied weights).
        copies: Kind of format -> more names under which it stores the same value; any of them can be the source.
        is_optional: Some checkpoints of the model lack it.
    """

    key: str
    places: dict[str, Place] = field(default_factory=dict)
    same_as: str | None = None
    copies: dict[str, tuple[str, ...]] = field(default_factory=dict)
    is_optional: bool = False

    def since_2_1(self) -> Tensor:
        """Return the tensor with the names that the PyTorch Model Zoo uses since release 2.1."""
        places = {
            kind: replace(place, name=moved(place.name)) if kind == CS else place for kind, place in self.places.items()
        }
        copies = {kind: tuple(map(moved, names)) if kind == CS else names for kind, names in self.copies.items()}
        return replace(self, places=places, copies=copies)

    def mask(self) -> Tensor:
        """Return the tensor's mask of sparse weights, which every format but Hugging Face's may store beside it."""
        places = {
            kind: replace(place, name=place.name + MASK_SUFFIX) for kind, place in self.places.items() if kind != HF
        }
        return Tensor(self.key + MASK_SUFFIX, places, is_optional=True)


REQUIRED = object()


@dataclass(frozen=True)
class ConfigKey:
    """The names of one setting in each kind of format; None if a kind does not have it.

    Attributes:
        default: Value if the source config lacks the setting; REQUIRED if it must have it.
        cs_default: The default for configs of the PyTorch Model Zoo, if it differs.
    """

    hf: str
    cs: str | None
    tf: str | None = None
    default: Any = REQUIRED
    cs_default: Any = REQUIRED


@dataclass(frozen=True)
class Constant:
    """A setting of one format that must have a fixed value, because the other formats cannot express another.

    Attributes:
        default: Value if a config lacks the setting; None skips the check then.
        is_written: Whether converted configs include it.
        since: First release with the setting.
        before: First later release without it; None if all later releases have it.
    """

    format: str
    key: str
    value: Any
    default: Any = None
    is_written: bool = False
    since: Release = (0, 0)
    before: Release | None = None

    def is_in(self, format_name: str) -> bool:
        """Whether a format has the setting."""
        number = release(format_name)
        return self.format == family(format_name) and self.since <= number and (not self.before or number < self.before)


# (source config, values so far under Hugging Face's names, kind of the source) -> values that override these.
ReadRule = Callable[[Config, Config, str], Config]
# (values under Hugging Face's names, values so far under the target's names, target) -> values that override these.
WriteRule = Callable[[Config, Config, str], Config]


# (whole source config, source) -> None; raises if the config cannot be converted to other formats.
SourceCheck = Callable[[Config, str], None]


def _accept(_config: Config, _source: str) -> None:
    pass


def _nothing(_config: Config, _values: Config, _format: str) -> Config:
    return {}


@dataclass(frozen=True)
class Model:
    """One model: its tensors as a function of the config, its settings, and descriptions.

    Attributes:
        name: The value of --model.
        tensors: Returns the tensors for a config under Hugging Face's names.
        config_keys: Settings that are copied.
        constants: Settings that are checked.
        formats: Formats between which it can be converted.
        hf_class: Class in transformers; None if it has no such model.
        cs_class: Class in the PyTorch Model Zoo.
        cs_name: The model's name in configs since release 2.4; empty if it is `name` without "-headless".
        hf_prefix: Prefix of the names in a Hugging Face file of the model with its head; some files lack it.
        hf_heads: Prefixes of names that do not get `hf_prefix`.
        model_type: Hugging Face's name of the architecture.
        read: Computes settings for Hugging Face's names that are not plain copies.
        write: Computes settings for the target's names that are not plain copies.
        check_source: Raises if a config of the PyTorch Model Zoo cannot be converted; the rules depend on the release.
        read_keys: Kind of format -> settings that `read` and `check_source` use.
        ignored: Kind of format -> pattern of names that are not weights.
        renamed: Kind of format -> (pattern, replacement) for names in older files.
        head: Prefixes of the head's names, which a headless variant leaves out; empty for other models.
        caveat: Note that `list` prints beside the classes.
    """

    name: str
    tensors: Callable[[Config], list[Tensor]]
    config_keys: tuple[ConfigKey, ...]
    constants: tuple[Constant, ...]
    formats: tuple[str, ...]
    hf_class: str | None
    cs_class: str
    cs_name: str = ""
    hf_prefix: str = ""
    hf_heads: tuple[str, ...] = ("lm_head",)
    model_type: str = ""
    read: ReadRule = _nothing
    write: WriteRule = _nothing
    check_source: SourceCheck = _accept
    read_keys: dict[str, frozenset[str]] = field(default_factory=dict)
    ignored: dict[str, str] = field(default_factory=dict)
    renamed: dict[str, tuple[tuple[str, str], ...]] = field(default_factory=dict)
    head: str = ""
    caveat: str = ""

    def pairs(self) -> list[tuple[str, str]]:
        """Return the pairs of formats that can be converted, in one direction."""
        pairs = []
        for number, first in enumerate(self.formats):
            for second in self.formats[number + 1 :]:
                if self.converts(first, second):
                    pairs.append((first, second))
        return pairs

    def converts(self, source: str, target: str) -> bool:
        """Whether two formats of this table can be converted; releases.py converts between releases."""
        kinds = {family(source), family(target)}
        return source in self.formats and target in self.formats and len(kinds) == 2 and CS_OLD not in kinds
