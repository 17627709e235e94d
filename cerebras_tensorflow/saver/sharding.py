"""The choice of each tensor's shard: by size, or by name patterns in a layout file.

Each line of a layout file is a rule, `SHARD PATTERN`, with a shell pattern for tensor names; `#` starts a comment:

    0  embedding/*
    1  layer_[0-5]/*
    2  layer_[6-9]/*
"""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Iterable
from dataclasses import dataclass

_MAX_SHARDS = 99_999


@dataclass(frozen=True)
class Layout:
    """Rules of (shard, name pattern). Every tensor must fit exactly one rule."""

    rules: tuple[tuple[int, str], ...]

    def shard(self, name: str, _num_bytes: int = 0) -> int:
        """Return the shard of a tensor.

        Raises:
            ValueError: If no rule or several rules fit its name.
        """
        fitting = [(shard, pattern) for shard, pattern in self.rules if fnmatch.fnmatchcase(name, pattern)]
        if not fitting:
            raise ValueError(f"the layout has no rule for tensor {name!r}; add a line with its shard and a pattern")
        if len(fitting) > 1:
            rules = ", ".join(f"'{shard} {pattern}'" for shard, pattern in fitting)
            raise ValueError(f"the layout has {len(fitting)} rules for tensor {name!r}: {rules}; keep one")
        return fitting[0][0]

    def check(self, names: Iterable[str]) -> None:
        """Check that every name fits exactly one rule, and every rule fits a name.

        Raises:
            ValueError: If not; the text names the tensor or the rule.
        """
        names = list(names)
        for name in names:
            self.shard(name)
        for shard, pattern in self.rules:
            if not any(fnmatch.fnmatchcase(name, pattern) for name in names):
                raise ValueError(f"the layout's rule '{shard} {pattern}' fits no tensor")


def read_layout(path: str) -> Layout:
    """Return the layout of a file.

    Raises:
        ValueError: If the file cannot be read or is not text, or a line is not a rule; names the line.
    """
    try:
        with open(path, encoding="utf-8") as file:
            lines = file.read().splitlines()
    except (OSError, UnicodeDecodeError) as exc:
        problem = exc.strerror if isinstance(exc, OSError) else "not UTF-8 text"
        raise ValueError(f"{path}: not a layout file: {problem}. Give a file of lines such as '0 layer_1/*'.") from exc
    rules = []
    for number, line in enumerate(lines, 1):
        text = line.split("#", 1)[0].strip()
        if not text:
            continue
        shard, _, pattern = text.replace("\t", " ").partition(" ")
        if not shard.isascii() or not shard.isdigit() or not pattern.strip() or int(shard) >= _MAX_SHARDS:
            raise ValueError(f"{path}:{number}: {text!r}: expected a shard number and a pattern, as in '0 layer_1/*'")
        rules.append((int(shard), pattern.strip()))
    if not rules:
        raise ValueError(f"{path}: no rules; expected lines such as '0 layer_1/*'")
    return Layout(tuple(rules))


def by_size(max_bytes: int) -> Callable[[str, int], int]:
    """Return a rule that fills shards in order, each up to `max_bytes`; a larger tensor gets a shard of its own."""
    if max_bytes <= 0:
        raise ValueError(f"a shard size of {max_bytes} bytes; expected a positive size")
    shard, used = 0, 0

    def shard_of(_name: str, num_bytes: int) -> int:
        nonlocal shard, used
        if used and used + num_bytes > max_bytes:
            shard, used = shard + 1, 0
        used += num_bytes
        return shard

    return shard_of
