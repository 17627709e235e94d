"""The choice of each tensor's shard: by size, or by name patterns in a layout file.

Each line of a layout file is a rule, `SHARD PATTERN`, with a shell pattern for tensor names. The first rule that
matches a name applies, `*` matches the rest, and `#` starts a comment:

    0  embedding/*
    1  layer_[0-5]/*
    2  layer_*
    3  *
"""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from cerebras_tensorflow.text import is_number

_MAX_SHARDS = 99_999
_REST = "*"
# By default, a checkpoint has about this many files, with sizes within these limits.
_NUM_FILES = 64
_SMALLEST_BYTES, _LARGEST_BYTES = 1 << 30, 32 << 30


@dataclass(frozen=True)
class Layout:
    """Rules of (shard, name pattern). The first one that matches a tensor's name gives its shard."""

    rules: tuple[tuple[int, str], ...]

    def shard(self, name: str, _num_bytes: int = 0) -> int:
        """Return the shard of a tensor.

        Raises:
            ValueError: If no rule matches its name.
        """
        return self.rules[self._rule(name)][0]

    def check(self, names: Iterable[str]) -> None:
        """Check that a rule matches each name, and that each rule is the first match of a name, except a last `*`.

        Raises:
            ValueError: If not; the text names the tensor or the rule.
        """
        names = list(names)
        used = {self._rule(name) for name in names}
        for number, (shard, pattern) in enumerate(self.rules):
            if number in used or (pattern == _REST and number + 1 == len(self.rules)):
                continue
            fits = any(fnmatch.fnmatchcase(name, pattern) for name in names)
            problem = "comes too late: earlier rules fit all its tensors" if fits else "fits no tensor"
            raise ValueError(f"the layout's rule '{shard} {pattern}' {problem}")

    def _rule(self, name: str) -> int:
        for number, (_, pattern) in enumerate(self.rules):
            if fnmatch.fnmatchcase(name, pattern):
                return number
        raise ValueError(
            f"the layout has no rule for tensor {name!r}; add a line with its shard and a pattern, or a last line "
            f"'SHARD {_REST}' for all others"
        )


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
        if not is_number(shard) or not pattern.strip() or int(shard) >= _MAX_SHARDS:
            raise ValueError(f"{path}:{number}: {text!r}: expected a shard number and a pattern, as in '0 layer_1/*'")
        rules.append((int(shard), pattern.strip()))
    if not rules:
        raise ValueError(f"{path}: no rules; expected lines such as '0 layer_1/*'")
    return Layout(tuple(rules))


def default_size(total_bytes: int) -> int:
    """Return the default size of a shard for a total size [B]: one that gives about 64 files, within 1 and 32 GiB.

    >>> [default_size(gib << 30) >> 30 for gib in (1, 30, 640, 100_000)]
    [1, 1, 10, 32]
    """
    return min(max(-(-total_bytes // _NUM_FILES), _SMALLEST_BYTES), _LARGEST_BYTES)


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
