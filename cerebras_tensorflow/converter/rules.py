"""What a table of name rules is made of.

Each tensor of a model has one canonical value: the PyTorch Model Zoo's, a linear layer as (outputs, inputs). A table
says for each kind of format under which name and in which layout that value is stored; conversion reads it either way.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from cerebras_tensorflow.converter.layouts import PLAIN, Layout
from cerebras_tensorflow.errors import CerebrasError

Config = dict[str, Any]

# Kinds of formats. Releases of the PyTorch Model Zoo share their names from 1.7 on; before, they were close to HF's.
HF, CS, CS_OLD, TF = "hf", "cs", "cs-1.6", "tf"


class ConfigConversionError(CerebrasError):
    """A config that the target format cannot express."""


def family(format_name: str) -> str:
    """Return the kind of a format.

    >>> family("cs-1.8"), family("cs-1.6"), family("hf")
    ('cs', 'cs-1.6', 'hf')
    """
    return CS if format_name.startswith("cs-") and format_name != CS_OLD else format_name


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
        places: Kind of format -> place; a kind without one does not store it.
        same_as: Key of the equal value to use if the source does not store this one (tied weights).
        copies: Kind of format -> further names under which it stores the same value; any of them serves as source.
        is_optional: Some checkpoints of the model do without it.
    """

    key: str
    places: dict[str, Place] = field(default_factory=dict)
    same_as: str | None = None
    copies: dict[str, tuple[str, ...]] = field(default_factory=dict)
    is_optional: bool = False


REQUIRED = object()


@dataclass(frozen=True)
class ConfigKey:
    """One setting under its name in each kind of format; None where a kind does not have it.

    Attributes:
        default: Value where the source config does not say; REQUIRED: it has to.
        cs_default: The same for configs of the PyTorch Model Zoo, where that is another one.
    """

    hf: str
    cs: str | None
    tf: str | None = None
    default: Any = REQUIRED
    cs_default: Any = REQUIRED


@dataclass(frozen=True)
class Constant:
    """A setting of one format that must have one value, because the other formats cannot say anything else.

    Attributes:
        default: Value of a config that does not say; None: nothing is checked then.
        is_written: Also put into converted configs.
    """

    format: str
    key: str
    value: Any
    default: Any = None
    is_written: bool = False


# (source config, values under Hugging Face's names so far, kind of the source) -> values to put over these.
ReadRule = Callable[[Config, Config, str], Config]
# (values under Hugging Face's names, values under the target's names so far, target) -> values to put over these.
WriteRule = Callable[[Config, Config, str], Config]


# (whole source config, source) -> None; raises where the config cannot leave its format.
SourceCheck = Callable[[Config, str], None]


def _accept(_config: Config, _source: str) -> None:
    pass


def _nothing(_config: Config, _values: Config, _format: str) -> Config:
    return {}


@dataclass(frozen=True)
class Model:
    """One model: its tensors as a function of the config, its settings, and words about it.

    Attributes:
        name: As --model takes it.
        tensors: Takes the config under Hugging Face's names.
        config_keys: Settings that are copied.
        constants: Settings that are checked.
        formats: What it can be converted between.
        hf_class: None where Hugging Face has no such model.
        cs_class: In the PyTorch Model Zoo.
        hf_prefix: Of the names in a file of the model with its head; files may also lack it.
        hf_heads: Starts of names that do not take the prefix.
        model_type: Hugging Face's word for the architecture.
        read: Settings that copying alone does not bring into Hugging Face's terms.
        write: Settings that copying alone does not bring out of them.
        check_source: Refuses configs of the PyTorch Model Zoo that depend on the release.
        read_keys: Settings that `read` and `check_source` look at, by kind of format.
        ignored: Kind of format -> pattern of names that carry no weight.
        renamed: Kind of format -> (pattern, replacement) of names that older files have.
        head: Start of the names of the head that a headless variant leaves out; empty where there is nothing to leave.
        caveat: What `list` says beside the classes.
    """

    name: str
    tensors: Callable[[Config], list[Tensor]]
    config_keys: tuple[ConfigKey, ...]
    constants: tuple[Constant, ...]
    formats: tuple[str, ...]
    hf_class: str | None
    cs_class: str
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
        """Return the conversions that there are, one direction of each."""
        pairs = []
        for number, first in enumerate(self.formats):
            for second in self.formats[number + 1 :]:
                if self.converts(first, second):
                    pairs.append((first, second))
        return pairs

    def converts(self, source: str, target: str) -> bool:
        """Whether there is a conversion between two formats of this table; between releases see releases.py."""
        kinds = {family(source), family(target)}
        return source in self.formats and target in self.formats and len(kinds) == 2 and CS_OLD not in kinds
