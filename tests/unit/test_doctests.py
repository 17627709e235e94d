"""The examples in docstrings hold, in every module that has one."""

from __future__ import annotations

import doctest
import importlib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
MODULES = [
    ".".join(path.relative_to(ROOT).with_suffix("").parts)
    for package in ("cerebras_tensorflow", "csrun")
    for path in sorted((ROOT / package).rglob("*.py"))
    if "    >>> " in path.read_text(encoding="utf-8")
]


@pytest.mark.parametrize("name", MODULES)
def test_examples(name: str) -> None:
    failed, attempted = doctest.testmod(importlib.import_module(name))
    assert attempted > 0 and failed == 0
