"""The module of a rank for tests of the launch: it exchanges its number, then behaves as the file `behaviour` says."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import numpy as np

from cerebras_tensorflow.runtime.collectives.interface import Collectives


def numbers(ranks: Collectives) -> list[int]:
    """Return the number that each rank sends."""
    places = [np.zeros(1, np.uint8) for _ in range(ranks.size)]
    ranks.exchange([np.full(1, ranks.rank, np.uint8)] * ranks.size, places)
    return [int(place[0]) for place in places]


def main(ranks: Collectives, folder: Path) -> None:
    """Run one rank."""
    assert numbers(ranks) == list(range(ranks.size))
    behaviour = (folder / "behaviour").read_text()
    if ranks.rank == 1 and behaviour == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if ranks.rank == 1 and behaviour == "full":
        raise OSError(28, "No space left on device")
    if ranks.rank == 1 and behaviour == "stops":
        os.kill(os.getpid(), signal.SIGSTOP)
    if behaviour != "orderly":
        ranks.barrier()
