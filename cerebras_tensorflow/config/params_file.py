"""Reads a params file: YAML with sections. An error names the file and the line."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import yaml

from cerebras_tensorflow.errors import SettingsError
from cerebras_tensorflow.text import did_you_mean_file


def read_params(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Return the content of a YAML file that holds a mapping.

    Raises:
        SettingsError: If the file is missing, unreadable, not YAML, or not a mapping.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except OSError as exc:
        meant = did_you_mean_file(path) if isinstance(exc, FileNotFoundError) else ""
        raise SettingsError(f"cannot read the params file {os.fspath(path)!r}: {exc.strerror}{meant}") from exc
    except UnicodeDecodeError as exc:
        raise SettingsError(f"{os.fspath(path)}: not valid YAML: byte {exc.start} is not UTF-8 text") from exc
    try:
        content = yaml.safe_load(text)
    except yaml.MarkedYAMLError as exc:
        place = exc.problem_mark
        line = "" if place is None else f", line {place.line + 1}, column {place.column + 1}"
        said = " ".join(word for word in (exc.problem, exc.context) if word)
        raise SettingsError(f"{os.fspath(path)}{line}: not valid YAML: {said}") from exc
    except yaml.YAMLError as exc:
        raise SettingsError(f"{os.fspath(path)}: not valid YAML: {exc}") from exc
    if not isinstance(content, dict):
        raise SettingsError(f"{os.fspath(path)}: expected sections such as 'model:', found {type(content).__name__}")
    return content
