"""What all frameworks of bench_peers.py share: the shape, the batch, the clock and the result line."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

LEARNING_RATE = 1e-4


@dataclass(frozen=True)
class Work:
    """One part of a run: `save` trains and saves, `resume` loads and trains, `unbroken` only trains."""

    what: str
    state: Path
    steps: int
    layers: int
    hidden: int
    heads: int
    vocabulary: int
    sequence: int
    batch: int
    budget_bytes: int


def work() -> Work:
    """Return the part that the command line of this process asks for."""
    what, state, *numbers = sys.argv[1:]
    return Work(what, Path(state), *map(int, numbers))


def batch(one: Work) -> np.ndarray:
    """Return the token ids of every step: shape (batch, sequence), int64."""
    return np.random.default_rng(1).integers(0, one.vocabulary, (one.batch, one.sequence))


def timed(step: Callable[[], float]) -> tuple[float, float]:
    """Run a step; return its time [s] and its loss."""
    begin = time.perf_counter()
    loss = step()
    return round(time.perf_counter() - begin, 3), loss


def measure(one: Work, step: Callable[[], float], save: Callable[[], object]) -> None:
    """Run the steps and, if the work asks for it, the save; print the result.

    Args:
        one: The work.
        step: Trains one step and returns its loss.
        save: Saves durably.
    """
    begin = time.perf_counter()
    times, losses = zip(*(timed(step) for _ in range(one.steps)), strict=True)
    save_s = 0.0
    if one.what == "save":
        saving = time.perf_counter()
        save()
        save_s = time.perf_counter() - saving
    report(begin, list(times), list(losses), save_s)


def sync(path: Path) -> None:
    """Wait until a file is on the disk."""
    with path.open("rb") as file:
        os.fsync(file.fileno())


def report(begin_s: float, times: list[float], losses: list[float], save_s: float) -> None:
    """Print the result.

    Args:
        begin_s: time.perf_counter when the first step began.
        times: Time of each step [s].
        losses: Loss of each step.
        save_s: Time of the save [s]; 0 if there was none.
    """
    status = Path("/proc/self/status").read_text()
    peak = next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmHWM"))
    result = {
        "start_s": round(_age_s() - (time.perf_counter() - begin_s), 1),
        "step_s": times,
        "losses": losses,
        "save_s": round(save_s, 1),
    }
    print(json.dumps({**result, "vm_hwm_bytes": peak}), flush=True)


def _age_s() -> float:
    """Return the time since this process started [s]."""
    started = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19]) / os.sysconf("SC_CLK_TCK")
    return float(Path("/proc/uptime").read_text().split()[0]) - started
