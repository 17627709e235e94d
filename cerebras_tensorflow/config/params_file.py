"""Reads a params file: YAML with sections. An error names the file and the line."""

from __future__ import annotations

import os
from typing import Any

from cerebras_tensorflow.config import bounded_text
from cerebras_tensorflow.errors import SettingsError
from cerebras_tensorflow.text import did_you_mean_file
from cerebras_tensorflow.units import format_bytes

_MAX_BYTES = 64 << 20


def read_params(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Return the content of a YAML file that holds a mapping.

    Raises:
        SettingsError: If the file is missing, unreadable, not YAML, or not a mapping.
    """
    try:
        with open(path, "rb") as file:  # a pipe of the shell too: -p <(sed ...)
            text = file.read(_MAX_BYTES + 1)
    except OSError as exc:
        meant = did_you_mean_file(path) if isinstance(exc, FileNotFoundError) else ""
        raise SettingsError(f"cannot read the params file {os.fspath(path)!r}: {exc.strerror}{meant}") from exc
    if len(text) > _MAX_BYTES:
        raise SettingsError(
            f"{os.fspath(path)}: too long for a params file: more than {format_bytes(_MAX_BYTES)}. Keep only settings "
            "in it; keep data in other files"
        )
    try:
        content = bounded_text.parse(text.decode("utf-8"), "YAML")
    except UnicodeDecodeError as exc:
        raise SettingsError(f"{os.fspath(path)}: not valid YAML: byte {exc.start} is not UTF-8 text") from exc
    except ValueError as exc:
        raise SettingsError(f"{os.fspath(path)}: not valid YAML: {exc}") from exc
    if not isinstance(content, dict):
        raise SettingsError(f"{os.fspath(path)}: expected sections such as 'model:', found {type(content).__name__}")
    return content
