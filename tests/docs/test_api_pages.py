"""The API pages cover all our names in NAMES.md, which old code imports, and all public names of the package."""

from __future__ import annotations

import importlib
import re
from functools import reduce
from typing import Any

import cerebras_tensorflow
from cerebras_tensorflow.compat.names import ABSENT, TABLE, Name
from tests.docs.markdown import ROOT

# Protobuf messages and enums, described by their .proto files, and constants, described by NAMES.md.
NOT_ON_PAGES = ("cerebras_tensorflow.compat.messages:",)


def documented() -> set[str]:
    """Full names in the autosummaries and directives of docs/api."""
    names = set()
    for path in (ROOT / "docs" / "api").glob("*.md"):
        module = ""
        for line in path.read_text(encoding="utf-8").splitlines():
            if match := re.match(r"\.\. currentmodule:: (\S+)", line):
                module = match[1]
            elif match := re.match(r"(?:   |\.\. auto(?!module)\w+:: )([A-Za-z_][\w.]*)$", line):
                names.add(f"{module}.{match[1]}")
    return names


def resolve(name: str) -> Any:
    """Return the object of a full name such as package.module.Class.method."""
    parts = name.split(".")
    for end in range(len(parts) - 1, 0, -1):
        try:
            module = importlib.import_module(".".join(parts[:end]))
        except ModuleNotFoundError:
            continue
        return reduce(getattr, parts[end:], module)
    raise LookupError(name)


def home_of(row: Name) -> Any:
    module, _, attribute = row.home.partition(":")
    return reduce(getattr, attribute.split("."), importlib.import_module(module))


def test_every_name_of_ours_in_names_md_is_on_an_api_page() -> None:
    on_pages = [resolve(name) for name in documented()]
    missing = set()
    for row in TABLE:
        is_ours = row.home.startswith("cerebras_tensorflow") and not row.home.startswith(NOT_ON_PAGES)
        # The inner modules of tensorflow_estimator only repeat names, or hold helpers of that wheel.
        if row.status == ABSENT or not row.name or not is_ours or row.module.startswith("tensorflow_estimator."):
            continue
        home = home_of(row)
        if callable(home) and not any(page is home for page in on_pages):
            missing.add(row.home)
    assert not missing, "add them to an autosummary in docs/api"


def test_every_public_name_of_the_package_is_on_an_api_page() -> None:
    public = {f"cerebras_tensorflow.{name}" for name in cerebras_tensorflow.__all__ if not name.startswith("_")}
    assert public <= documented()
