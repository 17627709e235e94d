"""How checkpoints in a model_dir are called, and which files belong to one."""

from __future__ import annotations

import glob
import os
import re

from cerebras_tensorflow.saver.bundle_format import INDEX_SUFFIX, parse_data_path

H5_SUFFIX = ".h5"
PIPELINED = "model.ckpt"
WEIGHT_STREAMING = "model-ckpt"

_STEP = re.compile(r"(?:model\.ckpt|model-ckpt)-(\d+)(?:\.h5)?")
_TRAILING_NUMBER = re.compile(r"-(\d+)(?:\.h5)?$")


def step_of(path: str) -> int | None:
    """Return the step in a checkpoint's name, or None where it has none.

    >>> step_of("model_dir/model-ckpt-120.h5")
    120
    """
    match = _TRAILING_NUMBER.search(os.path.basename(path))
    return int(match[1]) if match else None


def checkpoints_in(folder: str) -> list[str]:
    """Return the paths of all checkpoints that carry a model_dir name, newest step first, whole or not."""
    found = set()
    for item in os.scandir(folder):
        name = item.name.removesuffix(INDEX_SUFFIX)
        is_bundle = name != item.name and not name.endswith(H5_SUFFIX)
        if (is_bundle or name.endswith(H5_SUFFIX)) and _STEP.fullmatch(name):
            found.add(os.path.join(folder, name))
    return sorted(found, key=lambda path: (step_of(path) or 0, path), reverse=True)


def files_of(path: str) -> list[str]:
    """Return the files of a checkpoint in the order in which they may be removed: what makes it findable goes first."""
    files = [file for file in (path + INDEX_SUFFIX, path) if os.path.isfile(file)]
    data = sorted(glob.glob(glob.escape(path) + ".data-*"))
    meta = [path + ".meta"] if os.path.isfile(path + ".meta") else []
    return files + [file for file in data if parse_data_path(file)] + meta
