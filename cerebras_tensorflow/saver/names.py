"""The names of checkpoints in a model_dir, and the files of each checkpoint."""

from __future__ import annotations

import glob
import os
import re

from cerebras_tensorflow.saver.bundle.format import INDEX_SUFFIX, parse_data_path

H5_SUFFIX = ".h5"
MASKS_SUFFIX = ".masks.npz"
META_SUFFIX = ".meta"  # TensorFlow's graph
PIPELINED = "model.ckpt"
WEIGHT_STREAMING = "model-ckpt"

_STEP = re.compile(r"(?:model\.ckpt|model-ckpt)-(\d+)(?:\.h5)?")
_SHARD = re.compile(r"(.*)-\d{5}-of-\d{5}(\.h5)", re.DOTALL)
_TRAILING_NUMBER = re.compile(r"-(\d+)(?:\.h5)?$")


def step_of(path: str) -> int | None:
    """Return the step in a checkpoint's name, or None if it has none.

    >>> step_of("model_dir/model-ckpt-120.h5")
    120
    """
    match = _TRAILING_NUMBER.search(os.path.basename(path))
    return int(match[1]) if match else None


def checkpoints_in(folder: str) -> list[str]:
    """Return the paths of all checkpoints with a model_dir name, newest step first, complete or not."""
    paths = set()
    for item in os.scandir(folder):
        name = item.name.removesuffix(INDEX_SUFFIX)
        is_bundle = name != item.name and not name.endswith(H5_SUFFIX)
        if (is_bundle or name.endswith(H5_SUFFIX)) and _STEP.fullmatch(name):
            paths.add(os.path.join(folder, name))
    return sorted(paths, key=lambda path: (step_of(path) or 0, path), reverse=True)


def files_of(path: str) -> list[str]:
    """Return the files of a checkpoint in the order of their removal: readers look for the first one."""
    files = [file for file in (path + INDEX_SUFFIX, path) if os.path.isfile(file)]
    data = sorted(glob.glob(glob.escape(path) + ".data-*"))
    meta = [path + META_SUFFIX] if os.path.isfile(path + META_SUFFIX) else []
    return files + [file for file in data if parse_data_path(file)] + shards_of(path) + meta


def masks_path(path: str) -> str:
    """Return the path of a checkpoint's mask file, which earlier versions wrote. Masks are in the checkpoint now.

    >>> masks_path("model_dir/model-ckpt-120")
    'model_dir/model-ckpt-120.masks.npz'
    """
    return path + MASKS_SUFFIX


def shard_path(path: str, shard: int, num_shards: int) -> str:
    """Return the path of one file of a sharded HDF5 checkpoint.

    >>> shard_path("model_dir/weights.h5", 1, 3)
    'model_dir/weights-00001-of-00003.h5'
    """
    stem, suffix = os.path.splitext(path)
    return f"{stem}-{shard:05d}-of-{num_shards:05d}{suffix}"


def shards_of(path: str) -> list[str]:
    """Return the shard files beside an HDF5 checkpoint, of any shard count."""
    stem, suffix = os.path.splitext(path)
    if suffix != H5_SUFFIX:
        return []
    digits = "[0-9]" * 5
    return sorted(glob.glob(f"{glob.escape(stem)}-{digits}-of-{digits}{glob.escape(suffix)}"))


def checkpoint_of_shard(path: str) -> str | None:
    """Return the HDF5 checkpoint of a shard file, from its name; None for any other name.

    >>> checkpoint_of_shard("model_dir/weights-00001-of-00003.h5")
    'model_dir/weights.h5'
    """
    match = _SHARD.fullmatch(path)
    return match[1] + match[2] if match else None


def is_model_dir_name(path: str) -> bool:
    """Whether a path has one of the names that runs give their checkpoints.

    >>> is_model_dir_name("model_dir/model-ckpt-7.h5"), is_model_dir_name("model_dir/mine")
    (True, False)
    """
    return _STEP.fullmatch(os.path.basename(path)) is not None
