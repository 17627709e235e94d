"""Reads the section `sparsity` of params into groups: a filter of weights and an algorithm each."""

from __future__ import annotations

import fnmatch
import inspect
import itertools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cerebras_tensorflow.errors import SettingsError
from cerebras_tensorflow.logs import run_log
from cerebras_tensorflow.sparsity.algorithms import DynamicSparsityAlgorithm, SparsityAlgorithm, Static
from cerebras_tensorflow.text import did_you_mean

DENSE_PARTS = ("embedding", "norm", "lm_head", "pe_helper")
"""A weight whose name contains one of these stays dense by default."""
_STATIC_NAMES = ("sideband",)  # the only algorithm of release 1.9
_GROUP_KEYS = ("algorithm", "type", "schedule", "param_filter", "param_name_patterns", "params")


def is_sparse_by_default(name: str, shape: Sequence[int]) -> bool:
    """Whether a weight is sparse without a filter: two or more dims, and no embedding, norm or output head.

    >>> is_sparse_by_default("ffn/kernel", [8, 8]), is_sparse_by_default("layer_norm/gamma", [8])
    (True, False)
    """
    return len(shape) > 1 and not any(part in name.lower() for part in DENSE_PARTS)


def first_names(shapes: Mapping[str, tuple[int, ...]]) -> str:
    """Return the names of weights for a message, at most eight.

    >>> first_names({"a": (2,), "b": (2,)})
    'a, b'
    """
    return ", ".join(list(shapes)[:8]) + (" ..." if len(shapes) > 8 else "")


@dataclass(frozen=True)
class Group:
    """Weights with one algorithm.

    Attributes:
        algorithm: The algorithm.
        takes: takes(name, shape): whether a weight belongs to the group.
        filter: The filter as the user wrote it, for messages.
    """

    algorithm: SparsityAlgorithm
    takes: Callable[[str, Sequence[int]], bool] = is_sparse_by_default
    filter: str = "the default filter"


@dataclass(frozen=True)
class SparseGroups:
    """The groups of a run. A weight belongs to the first group that takes it."""

    groups: tuple[Group, ...]

    def takes(self, name: str, shape: Sequence[int]) -> bool:
        """Whether a weight is sparse."""
        return any(group.takes(name, shape) for group in self.groups)

    def choose(self, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, SparsityAlgorithm]:
        """Return weight -> algorithm.

        Args:
            shapes: Shape of each trainable weight, by name.

        Raises:
            SettingsError: If a group has no weight.
        """
        chosen: dict[str, SparsityAlgorithm] = {}
        for group in self.groups:
            named = [name for name, shape in shapes.items() if group.takes(name, shape)]
            if not named:
                raise SettingsError(
                    f"sparsity: {group.filter} matches no weight of the model, so nothing would be sparse. Its weights "
                    f"are {first_names(shapes)}."
                )
            for name in named:
                if name not in chosen:
                    group.algorithm.check(name, shapes[name])
                    chosen[name] = group.algorithm
        return chosen

    def check_end(self, last_step: int) -> None:
        """Check that each schedule leaves some weights in use until the last step of a run.

        Raises:
            SettingsError: If one does not.
        """
        for group in self.groups:
            group.algorithm.check_end(f"what {group.filter} takes", last_step)


def configure(config: Any) -> SparseGroups | None:
    """Return the groups of a configuration; None if it is None.

    Args:
        config: A number (static sparsity), a section, a list of sections (the first whose filter matches a weight
            wins), an algorithm, or groups.

    Raises:
        SettingsError: If a key or a value is unknown or out of range.
    """
    if config is None or isinstance(config, SparseGroups):
        return config
    groups = tuple(_groups(config))
    if not groups:
        raise SettingsError("sparsity is an empty list; expected a number, a section or a list of sections")
    return SparseGroups(groups)


def _groups(config: Any) -> Iterator[Group]:
    if isinstance(config, Group):
        return iter([config])
    if isinstance(config, SparsityAlgorithm):
        return iter([Group(config)])
    if isinstance(config, (list, tuple)):
        return itertools.chain.from_iterable(map(_groups, config))
    if not isinstance(config, Mapping):
        return iter([Group(Static(config))])
    if "groups" not in config:
        return _section(dict(config))
    if len(config) > 1:
        raise SettingsError("sparsity has groups and other keys; put the other keys into the groups")
    return _groups(config["groups"])


def _section(section: dict[str, Any]) -> Iterator[Group]:
    """Yield the groups of one section."""
    inner = section.pop("params", None)
    if inner is not None:
        section = {**_mapping("params", inner), **section}
    if section.pop("dump_masks", None):  # of releases 1.8 and 1.9
        run_log.info("dump_masks: every checkpoint has the mask of a weight beside it, as <weight>_mask.")
    patterns = section.pop("param_name_patterns", None)
    wanted = section.pop("param_filter", None)
    if patterns is not None and wanted is not None:
        raise SettingsError("sparsity has param_filter and param_name_patterns; keep param_filter")
    if isinstance(patterns, Mapping):  # regular expression -> keys that replace those of the section
        for pattern, own in patterns.items():
            algorithm = _algorithm({**section, **_mapping("param_name_patterns", own or {})})
            yield Group(algorithm, _by_regex([pattern]), f"param_name_patterns {pattern!r}")
        return
    algorithm = _algorithm(section)
    if patterns is not None:
        yield Group(algorithm, _by_regex(_texts("param_name_patterns", patterns)), f"param_name_patterns {patterns!r}")
    elif callable(wanted):
        yield Group(algorithm, wanted, "param_filter")
    elif wanted is not None:
        yield Group(algorithm, _by_glob(_texts("param_filter", wanted)), f"param_filter {wanted!r}")
    else:
        yield Group(algorithm)


def _algorithm(section: dict[str, Any]) -> SparsityAlgorithm:
    given = dict(section)
    if "algorithm" in given and "type" in given:
        raise SettingsError("sparsity has algorithm and type; keep algorithm")
    kind = _class_of(given.pop("algorithm", given.pop("type", "static")))
    schedule = given.pop("schedule", None)
    if schedule is not None:
        # Releases 2.0 and 2.1: schedule says when. From 2.2 on: another name of sparsity.
        is_when = isinstance(schedule, Mapping) and "type" not in schedule
        key = "update" if is_when else "sparsity"
        if key in given:
            raise SettingsError(f"sparsity has schedule and {key}; keep {key}")
        given[key] = schedule
    known = _parameters(kind)
    for key in given:
        if key not in known:
            others = [name for name, other in _named_classes().items() if key in _parameters(other)]
            if others:
                raise SettingsError(
                    f"unknown key {key!r} in section sparsity: algorithm {kind.__name__.lower()} does not take it. "
                    f"Remove it, or set algorithm to {' or '.join(others)}."
                )
            raise SettingsError(
                f"unknown key {key!r} in section sparsity{did_you_mean(str(key), [*known, *_GROUP_KEYS]) or '.'} "
                f"{kind.__name__.lower()} has {', '.join(known)}."
            )
    return kind(**given)


def _class_of(name: Any) -> type[SparsityAlgorithm]:
    known = _named_classes() | dict.fromkeys(_STATIC_NAMES, Static)
    if isinstance(name, type) and issubclass(name, SparsityAlgorithm):
        return name
    if str(name).lower() not in known:
        raise SettingsError(
            f"unknown sparsity algorithm {name!r}{did_you_mean(str(name), known) or '.'} Expected one of "
            f"{', '.join(sorted(known))}."
        )
    return known[str(name).lower()]


def _named_classes() -> dict[str, type[SparsityAlgorithm]]:
    """Return the algorithms by their names in params."""
    return {kind.__name__.lower(): kind for kind in _subclasses(SparsityAlgorithm) if not _is_internal(kind)}


def _subclasses(kind: type[Any]) -> Iterator[type[Any]]:
    for each in kind.__subclasses__():
        yield each
        yield from _subclasses(each)


def _is_internal(kind: type[Any]) -> bool:
    """Whether a class has no name in params: a base, or one with the arguments of SPARSIFIER_MAP."""
    return kind is DynamicSparsityAlgorithm or kind.__module__.startswith("cerebras_tensorflow.compat.")


def _parameters(kind: type[SparsityAlgorithm]) -> list[str]:
    """Return the names of the arguments of an algorithm, including those that it passes on to its bases."""
    names: dict[str, None] = {}
    for each in kind.__mro__:
        if "__init__" not in vars(each) or not issubclass(each, SparsityAlgorithm):
            continue
        parameters = inspect.signature(vars(each)["__init__"]).parameters.values()
        named = [p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY) and p.name != "self"]
        names |= dict.fromkeys(named)
        if not any(p.kind is p.VAR_KEYWORD for p in parameters):
            break
    return list(names)


def _mapping(key: str, value: Any) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise SettingsError(f"{key} is {value!r}; expected keys and values")
    return value


def _texts(key: str, value: Any) -> list[str]:
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, (list, tuple)) or not texts or not all(isinstance(text, str) for text in texts):
        raise SettingsError(f"{key} is {value!r}; expected a pattern, or a list of patterns")
    return list(texts)


def _by_glob(globs: Sequence[str]) -> Callable[[str, Sequence[int]], bool]:
    return lambda name, _shape: any(fnmatch.fnmatchcase(name, glob) for glob in globs)


def _by_regex(patterns: Sequence[str]) -> Callable[[str, Sequence[int]], bool]:
    try:
        compiled = [re.compile(pattern) for pattern in patterns]
    except re.error as error:
        raise SettingsError(f"param_name_patterns: {error}; expected regular expressions") from error
    return lambda name, _shape: any(pattern.search(name) for pattern in compiled)
