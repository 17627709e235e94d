"""The masks of a sparsifier, in a file beside each checkpoint: CHECKPOINT.masks.npz.

Zeros in the checkpoint are not enough, since an unmasked weight may be zero too. The file is an NPZ without pickled
objects. `names` lists the variables. `kept_i` holds one bit per weight of variable i (numpy.packbits of the flat
array), 1 for unmasked.
"""

from __future__ import annotations

import io
import zipfile
from collections.abc import Mapping
from typing import Any

import numpy as np

from cerebras_tensorflow.errors import CheckpointError
from cerebras_tensorflow.saver.model_dir import beside
from cerebras_tensorflow.saver.names import masks_path

_ENTRY_BYTES = 4096  # room for the headers of one array and its name in the archive
_FILE_BYTES = 65536


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
    beside.write(masks_path(checkpoint), content.getvalue())


def read(checkpoint: str, sizes: Mapping[str, int]) -> dict[str, np.ndarray] | None:
    """Return the packed bits by variable; None if the checkpoint has no such file.

    Args:
        checkpoint: Its path.
        sizes: Variable -> number of its weights.

    Raises:
        CheckpointError: If the file is damaged, or does not fit the variables.
    """
    path = masks_path(checkpoint)
    try:
        content = beside.read(path, _most_bytes(sizes))
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            kept = {}
            for number, name in enumerate(map(str, _array(archive, "names"))):
                kept[name] = _array(archive, f"kept_{number}").copy()
                _check(path, name, kept[name], sizes)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as exc:
        raise CheckpointError(
            f"{path}: the masks of the sparse weights cannot be read: {exc}. Choose another checkpoint, or remove the "
            "file to mask all weights that are zero."
        ) from exc
    return kept


def _most_bytes(sizes: Mapping[str, int]) -> int:
    """Return the largest size of a valid mask file: bits, names (four bytes per character), and headers."""
    longest = max(map(len, sizes), default=0)
    return sum(-(-size // 8) for size in sizes.values()) + len(sizes) * (4 * longest + _ENTRY_BYTES) + _FILE_BYTES


def _array(archive: zipfile.ZipFile, name: str) -> np.ndarray:
    """Return an array of an NPZ file. np.load would trust the header and allocate any size that it claims.

    Raises:
        ValueError: If it is compressed, or its header does not match its size.
    """
    entry = archive.getinfo(f"{name}.npy")
    if entry.compress_type != zipfile.ZIP_STORED:
        raise ValueError(f"{entry.filename} is compressed, but mask files are not")
    with archive.open(entry) as file:
        if np.lib.format.read_magic(file) != (1, 0):
            raise ValueError(f"{entry.filename} has another version of the NPY format")
        shape, _, dtype = np.lib.format.read_array_header_1_0(file)
        return np.frombuffer(file.read(), dtype).reshape(shape)


def _check(path: str, name: str, bits: np.ndarray, sizes: Mapping[str, int]) -> None:
    if name not in sizes or bits.dtype != np.uint8 or bits.shape != (-(-sizes[name] // 8),):
        raise CheckpointError(
            f"{path}: the mask of {name} has {bits.size} bytes; the model has {sizes.get(name, 'no')} weights of this "
            "name. Remove the file to mask all weights that are zero."
        )
