"""Several CSX as threads of this process, which exchange bytes as processes do over MPI."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from cerebras_tensorflow.estimator.execution import csx_member, replicas, several_csx
from cerebras_tensorflow.runtime.collectives.in_process import make_group
from cerebras_tensorflow.runtime.collectives.interface import Collectives
from cerebras_tensorflow.runtime.collectives.relay import SECRET_FILE


def use_threads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Let threads be the other CSX; return the list that gets the number of CSX of each run."""
    sizes: list[int] = []

    def start(size: int, module: str, folder: Path, limit_s: float) -> Collectives:
        sizes.append(size)
        (folder / SECRET_FILE).write_bytes(b"secret")
        group = make_group(size, limit_s)
        for ranks in group[1:]:
            threading.Thread(target=csx_member.main, args=(ranks, folder), daemon=True).start()
        return group[0]

    monkeypatch.setattr(several_csx.launch, "start", start)
    monkeypatch.setattr(several_csx, "check_mpi", lambda: None)
    monkeypatch.setattr(replicas, "check_mpi", lambda: None)
    return sizes
