"""The masks of a sparsifier, in a file beside each checkpoint: CHECKPOINT.masks.npz.

Zeros in the checkpoint are not enough, since an unmasked weight may be zero too. The file is an NPZ without pickled
objects. `names` lists the variables. `kept_i` holds one bit per weight of variable i (numpy.packbits of the flat
array), 1 for unmasked.
"""

from __future__ import annotations

import io
import os
import zipfile
from collections.abc import Mapping
from typing import Any

import numpy as np

from cerebras_tensorflow.errors import CheckpointError
from cerebras_tensorflow.saver.files.atomic import write_file
from cerebras_tensorflow.saver.names import masks_path


def write(checkpoint: str, kept: Mapping[str, np.ndarray]) -> None:
    """Write the masks of a checkpoint atomically.

    Args:
        checkpoint: Its path. The checkpoint need not exist yet.
        kept: Packed bits by variable.

    Raises:
        CheckpointError: If it cannot be written.
    """
    content = io.BytesIO()
    arrays: dict[str, Any] = {f"kept_{number}": bits for number, bits in enumerate(kept.values())}
    np.savez(content, names=np.array(list(kept), np.str_), **arrays)
    write_file(masks_path(checkpoint), content.getvalue())


def read(checkpoint: str, sizes: Mapping[str, int]) -> dict[str, np.ndarray] | None:
    """Return the packed bits by variable; None if the checkpoint has no such file.

    Args:
        checkpoint: Its path.
        sizes: Variable -> number of its weights.

    Raises:
        CheckpointError: If the file is damaged, or does not fit the variables.
    """
    path = masks_path(checkpoint)
    if not os.path.exists(path):
        return None
    try:
        with open(path, "rb") as file, np.load(file, allow_pickle=False) as arrays:
            kept = {str(name): arrays[f"kept_{number}"] for number, name in enumerate(arrays["names"])}
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as exc:
        raise CheckpointError(
            f"{path}: the masks of the sparse weights cannot be read: {exc}. Choose another checkpoint, or remove the "
            "file to mask all weights that are zero."
        ) from exc
    for name, bits in kept.items():
        if name not in sizes or bits.shape != (-(-sizes[name] // 8),):
            raise CheckpointError(
                f"{path}: the mask of {name} has {bits.size} bytes; the model has "
                f"{sizes.get(name, 'no')} weights of this name. Remove the file to mask all weights that are zero."
            )
    return kept
