"""The file `ckpt_info`, in which releases 1.9 to 2.4 list the HDF5 checkpoints of a folder, oldest first."""

from __future__ import annotations

import contextlib
import json
import logging
import os

from cerebras_tensorflow import files
from cerebras_tensorflow.errors import CheckpointError
from cerebras_tensorflow.saver.hdf5.isolated import IsolatedH5

logger = logging.getLogger(__name__)

LEGACY_INDEX = "ckpt_info"


def checkpoints_listed(folder: str) -> list[str]:
    """Return the paths of the checkpoints that a folder's `ckpt_info` lists, oldest first; none if it has none.

    Entries that are null, missing or outside the folder are left out. A damaged file counts as absent.

    Source:
        An HDF5 file with one root attribute, `ckpt_info`, a JSON object whose `ckpt_paths` are relative paths or null.
    """
    path = os.path.join(folder, LEGACY_INDEX)
    if not os.path.isfile(path):
        return []
    try:
        with files.open_regular(path) as file, contextlib.closing(IsolatedH5(path, file.fileno())) as hdf5:
            content = json.loads(hdf5.ask("attribute", name=LEGACY_INDEX))
        names = [name for name in content["ckpt_paths"] if isinstance(name, str)]
    except (OSError, CheckpointError, RuntimeError, ValueError, KeyError, TypeError) as error:
        logger.warning("%s: not read: %s", path, error)
        return []
    root = os.path.realpath(folder)
    inside = [name for name in names if os.path.realpath(os.path.join(root, name)).startswith(root + os.sep)]
    return [path for path in (os.path.join(folder, name) for name in inside) if os.path.isfile(path)]
