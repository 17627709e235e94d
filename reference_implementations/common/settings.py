"""Checks the sections of a params file, and returns each as a dataclass.

A frozen dataclass describes a section: its fields are the keys, their annotations the types, their defaults the
defaults. Any other key is an error that names the nearest known keys.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
import re
import types
import typing
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import yaml

from cerebras_tensorflow import files
from cerebras_tensorflow.errors import SettingsError
from cerebras_tensorflow.text import did_you_mean

SectionType = TypeVar("SectionType")


@dataclasses.dataclass(frozen=True)
class Range:
    """Values that a key may have: from `low`, which may be excluded, to below `high`."""

    low: float
    high: float = math.inf
    has_low: bool = True

    def __contains__(self, value: float) -> bool:
        return (value >= self.low if self.has_low else value > self.low) and value < self.high

    def __str__(self) -> str:
        low = f"at least {self.low:g}" if self.has_low else f"more than {self.low:g}"
        return low if self.high == math.inf else f"{low} and less than {self.high:g}"


_COUNTS = (
    r"batch_size|\w+_size|d_model|d_kv|d_ff|num_\w+|\w+_num_\w+|max_position_embeddings|max_\w*length|span_length"
    r"|shuffle_buffer|max_steps|steps|\w+_steps|grad_accum_steps|masked_span"
)
RANGES: tuple[tuple[str, Range], ...] = (
    (r"skip_steps|eval_steps|throttle_secs|num_epochs|keep_checkpoint_max|num_test|save_summary_steps", Range(0)),
    (r"\w*dropout(_rate)?|masked_lm_prob", Range(0, 1)),
    (r"momentum|beta1|beta2", Range(0, 1)),
    (
        r"max_gradient_\w+|initializer_range|rope_theta|\w+_secs|\w+_n_hours",
        Range(0, has_low=False),
    ),
    (r"\w*learning_rate|weight_decay_rate|\w*epsilon|decay_rate|overflow_tolerance", Range(0)),
    (_COUNTS, Range(1)),
)
"""Pattern of a key's name -> allowed numbers. The first pattern that matches applies."""


def check_sections(
    content: Mapping[str, Any],
    sections: Mapping[str, type],
    source: str,
    options: Mapping[str, Sequence[str]] | None = None,
) -> dict[str, Any]:
    """Return one settings object for each section.

    Args:
        content: The file's content; a section that it lacks gets its defaults.
        sections: Section name -> dataclass.
        source: Where the content came from, for messages.
        options: Section name -> keys that came from options of the command line. An error about one names the option.

    Raises:
        SettingsError: On an unknown section or key, a wrong type, or a required key that is missing.
    """
    for name in content:
        if name not in sections:
            raise SettingsError(f"{source}: unknown section {name!r}{_nearest(str(name), sections)}")
    given = options or {}
    return {
        name: check_section(content.get(name) or {}, section, name, source, given.get(name, ()))
        for name, section in sections.items()
    }


def check_section(
    content: Any, section: type[SectionType], name: str, source: str, options: Sequence[str] = ()
) -> SectionType:
    """Return the settings object of one section; raises as `check_sections` does."""
    if not isinstance(content, Mapping):
        raise SettingsError(f"{source}: section {name!r} must hold keys and values, found {content!r}")
    hints = typing.get_type_hints(section)
    fields = {field.name: field for field in dataclasses.fields(section)}  # type: ignore[arg-type]
    for key in content:
        if key not in fields:
            raise SettingsError(f"{source}: unknown {name} key {key!r}{_nearest(str(key), fields)}")
    values = {}
    for key, value in content.items():
        what, origin = f"{name} key {key!r}", _with_options(source, options, key)
        values[key] = _checked(value, hints[key], what, origin)
        _check_range(key, values[key], what, origin)
    missing = [
        key
        for key, field in fields.items()
        if key not in values and field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
    ]
    if missing:
        raise SettingsError(f"{source}: section {name!r} lacks the required key {missing[0]!r}")
    try:
        return section(**values)
    except SettingsError as exc:
        raise SettingsError(f"{_with_options(source, options, str(exc))}: {name}: {exc}") from exc


def _with_options(source: str, options: Sequence[str], text: str) -> str:
    """Return the source, followed by those of the options whose keys a text names."""
    named = [f"--{key}" for key in options if re.search(rf"\b{key}\b", text)]
    return f"{source} with {', '.join(named)}" if named else source


def write_yaml(content: Mapping[str, Any], path: Path) -> None:
    """Write a mapping as YAML; the file appears only when it is complete."""
    path.parent.mkdir(parents=True, exist_ok=True)
    files.write_text(path, yaml.safe_dump(dict(content), sort_keys=False))


def _nearest(name: str, known: Mapping[str, Any]) -> str:
    near = difflib.get_close_matches(name, list(known), n=3, cutoff=0.6)
    if near:
        return f"; did you mean {' or '.join(repr(item) for item in near)}?"
    return f"; known: {', '.join(sorted(known))}"


def _checked(value: Any, hint: Any, what: str, source: str) -> Any:
    options = typing.get_args(hint) if typing.get_origin(hint) in (types.UnionType, typing.Union) else (hint,)
    for option in options:
        matched, converted = _match(value, option)
        if matched:
            return converted
    expected = " or ".join(_type_name(option) for option in options)
    words = [word for option in options for word in typing.get_args(option) if isinstance(word, str)]
    meant = did_you_mean(value, words) if isinstance(value, str) else ""
    raise SettingsError(f"{source}: {what} is {value!r}; expected {expected}{meant}")


def _check_range(key: str, value: Any, what: str, source: str) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return
    if math.isnan(value):
        raise SettingsError(f"{source}: {what} is NaN; expected a number")
    allowed = next((allowed for pattern, allowed in RANGES if re.fullmatch(pattern, key)), None)
    if allowed is not None and value not in allowed:
        raise SettingsError(f"{source}: {what} is {value!r}; expected {allowed}")


def _match(value: Any, option: Any) -> tuple[bool, Any]:
    """Return whether a YAML value has a type, and the value converted to it."""
    origin = typing.get_origin(option)
    if option is Any:
        return True, value
    if option is type(None):
        return value is None, None
    if origin is typing.Literal:
        return value in typing.get_args(option), value
    if origin is tuple:
        if not isinstance(value, list):
            return False, None
        items = [_match(item, typing.get_args(option)[0]) for item in value]
        return all(matched for matched, _ in items), tuple(item for _, item in items)
    if origin is dict:
        return isinstance(value, dict), value
    if option is float:
        # YAML 1.1 reads 1e-4 (no dot) as text.
        if isinstance(value, str):
            try:
                return True, float(value)
            except ValueError:
                return False, None
        return isinstance(value, (int, float)) and not isinstance(value, bool), value
    if option is int:
        return isinstance(value, int) and not isinstance(value, bool), value
    return isinstance(value, option), value


def _type_name(option: Any) -> str:
    origin = typing.get_origin(option)
    if option is type(None):
        return "nothing"
    if origin is typing.Literal:
        return "one of " + ", ".join(repr(item) for item in typing.get_args(option))
    if origin is tuple:
        item = typing.get_args(option)[0]
        items = {int: " of whole numbers", float: " of numbers", str: " of texts", Any: ""}
        return f"a list{items.get(item, f', each item {_type_name(item)}')}"
    names = {
        int: "a whole number", float: "a number", str: "text", bool: "true or false", dict: "keys and values",
        list: "a list", Any: "any value",
    }  # fmt: skip
    return names.get(origin or option, str(option))
