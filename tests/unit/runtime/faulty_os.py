"""A replacement for module `os` with file calls that fail on request, as on a full or broken disk."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

import pytest

CALLS = ("open", "ftruncate", "pwrite", "pwritev", "preadv", "unlink")


class FaultyOs:
    """Stands in for `os` in some modules. One file call fails; with `is_lasting`, all later ones fail too.

    Args:
        code: Error number.
        number: Which call fails, from 0 on; None: none does.
        is_lasting: Whether the later calls fail too.

    Attributes:
        calls: The names of the calls so far.
        failed: Those that failed.
    """

    def __init__(self, code: int, number: int | None, is_lasting: bool = False) -> None:
        self._code, self._number, self._is_lasting = code, number, is_lasting
        self.calls: list[str] = []
        self.failed: list[str] = []

    def __getattr__(self, name: str) -> Any:
        real = getattr(os, name)
        if name not in CALLS:
            return real

        def call(*arguments: Any, **options: Any) -> Any:
            number = len(self.calls)
            self.calls.append(name)
            if self._number is not None and (number == self._number or (self._is_lasting and number > self._number)):
                self.failed.append(name)
                raise OSError(self._code, os.strerror(self._code))
            return real(*arguments, **options)

        return call

    def replace_in(self, patch: pytest.MonkeyPatch, modules: Iterable[Any]) -> None:
        """Make modules use this instead of `os`."""
        for module in modules:
            patch.setattr(module, "os", self)
