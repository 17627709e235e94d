"""What scripts for the appliance (1.6 to 1.8) import beside the estimator: environment, debug args, mounts."""

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
"""Variables of the appliance's processes. Here one process plays all roles, so they are this process's own."""


@dataclass(frozen=True)
class VolumeMount:
    """A folder that the cluster mounts; on one machine there is nothing to mount."""

    name: str
    mount_path: str


def get_debug_args(path: str | os.PathLike[str]) -> Any:
    """Return the DebugArgs in a text file.

    Raises:
        OSError: If it cannot be read.
        google.protobuf.text_format.ParseError: If it is not the text of a DebugArgs.
    """
    return text_format.Parse(Path(path).read_text(encoding="utf-8"), messages.DebugArgs())


def write_debug_args(debug_args: Any, path: str | os.PathLike[str]) -> None:
    """Write DebugArgs as the text that `get_debug_args` reads."""
    Path(path).write_text(text_format.MessageToString(debug_args), encoding="utf-8")


def update_debug_args_with_autogen_policy(debug_args: Any, autogen_policy: Any = None) -> Any:
    """Return debug_args; the policy, which chose kernels of the original's compiler, changes nothing here."""
    return debug_args
