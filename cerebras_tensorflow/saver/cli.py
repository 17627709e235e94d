"""The commands tensorflow-to-h5 and h5-to-tensorflow."""

from __future__ import annotations

import sys


def tensorflow_to_h5() -> int:
    """Run the command tensorflow-to-h5."""
    return _not_yet_available("tensorflow-to-h5")


def h5_to_tensorflow() -> int:
    """Run the command h5-to-tensorflow."""
    return _not_yet_available("h5-to-tensorflow")


def _not_yet_available(command: str) -> int:
    print(f"{command}: not yet available: the HDF5 format is still being written", file=sys.stderr)
    return 2
