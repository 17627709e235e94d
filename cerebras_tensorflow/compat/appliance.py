"""Helpers that scripts for the appliance (1.6 to 1.8) import: environment, debug args, volume mounts."""

from __future__ import annotations

import os
from collections.abc import MutableMapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from google.protobuf import text_format

from cerebras_tensorflow.compat import messages

DEFAULT_COMPILE_DIR = "cs_compile"
appliance_environ: MutableMapping[str, str] = os.environ
"""Environment of the appliance's processes. Here one process plays all roles, so this is its own environment."""


@dataclass(frozen=True)
class VolumeMount:
    """A folder that the cluster would mount. It is kept and not used: on one machine there is nothing to mount."""

    name: str
    mount_path: str


def get_debug_args(path: str | os.PathLike[str]) -> Any:
    """Return the DebugArgs in a text file.

    Raises:
        OSError: If the file cannot be read.
        google.protobuf.text_format.ParseError: If the file is not the text of a DebugArgs.
    """
    return text_format.Parse(Path(path).read_text(encoding="utf-8"), messages.DebugArgs())


def write_debug_args(debug_args: Any, path: str | os.PathLike[str]) -> None:
    """Write DebugArgs as the text that `get_debug_args` reads."""
    Path(path).write_text(text_format.MessageToString(debug_args), encoding="utf-8")


def update_debug_args_with_autogen_policy(
    debug_args: Any,
    autogen_policy: Any = None,  # noqa: ARG001 - the original's signature
) -> Any:
    """Return debug_args unchanged. The policy selects kernels of the original's compiler, which do not exist here."""
    return debug_args
