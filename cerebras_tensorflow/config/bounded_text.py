"""YAML and JSON of unknown origin, in bounded time and memory."""

from __future__ import annotations

import json
import re
from typing import Any

import yaml

_MAX_DEPTH = 200
_MAX_VALUES = 1_000_000


class _Loader(yaml.SafeLoader):
    """Bounds the pairs that merge keys (`<<`) copy: some lines that merge each other could copy any number."""

    def __init__(self, stream: str) -> None:
        super().__init__(stream)
        self._pairs_left = _MAX_VALUES

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        """Copy the pairs of merged mappings into a mapping."""
        super().flatten_mapping(node)
        self._pairs_left -= len(node.value)
        if self._pairs_left < 0:
            raise yaml.YAMLError(f"its mappings have more than {_MAX_VALUES} keys, with all merges expanded")


def parse(text: str, kind: str) -> Any:
    """Return what a text of a kind, "YAML" or "JSON", describes.

    Raises:
        ValueError: If it is not of this kind, or describes too much. The message names the place if it is known.
    """
    _check_depth(text)
    try:
        content = json.loads(text) if kind == "JSON" else yaml.load(text, _Loader)
    except yaml.MarkedYAMLError as exc:
        place = exc.problem_mark
        line = "" if place is None else f"line {place.line + 1}, column {place.column + 1}: "
        raise ValueError(line + " ".join(word for word in (exc.problem, exc.context) if word)) from exc
    except yaml.YAMLError as exc:
        raise ValueError(str(exc)) from exc
    except RecursionError as exc:
        raise ValueError("it is nested too deep") from exc
    except (TypeError, AttributeError, KeyError, IndexError, OverflowError) as exc:  # PyYAML's, for odd numbers
        raise ValueError(f"a value cannot be read: {exc}") from exc
    _check_references(content)
    return content


def _check_depth(text: str) -> None:
    """Refuse deeply nested brackets, whose parsing takes quadratic time."""
    depth = 0
    for bracket in re.findall(r"[][{}]", text):
        depth = depth + 1 if bracket in "[{" else max(depth - 1, 0)
        if depth > _MAX_DEPTH:
            raise ValueError(f"brackets are nested deeper than {_MAX_DEPTH}")


def _check_references(content: Any) -> None:
    """Refuse YAML whose nested references would take almost endless time to write out."""
    pending = [content]
    for _ in range(_MAX_VALUES):
        if not pending:
            return
        value = pending.pop()
        if isinstance(value, dict):
            pending += value.values()
        elif isinstance(value, list | tuple):
            pending += value
    raise ValueError(f"more than {_MAX_VALUES} values, with all references expanded")
