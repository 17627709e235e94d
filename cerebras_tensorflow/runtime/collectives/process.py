"""A process of a run on several CSX: `python -m cerebras_tensorflow.runtime.collectives.process FOLDER MODULE NETWORK`.

MPI or Slurm starts one for each CSX. Rank 0 moves the bytes of the first CSX (relay.py). Each other rank calls
`main(ranks, folder)` of MODULE.
"""

from __future__ import annotations

import ctypes
import importlib
import math
import os
import signal
import sys
import traceback
from contextlib import suppress
from pathlib import Path

from cerebras_tensorflow.config import env
from cerebras_tensorflow.errors import CerebrasError
from cerebras_tensorflow.runtime.collectives import relay, tcp
from cerebras_tensorflow.runtime.collectives.checked import CheckedCollectives
from cerebras_tensorflow.runtime.collectives.mpi import join_world
from cerebras_tensorflow.runtime.collectives.shared_files import end_at_once
from cerebras_tensorflow.runtime.collectives.signs_of_life import (
    FIRST_FILE,
    Sign,
    error_file,
    exit_with,
    log_file,
    rank_file,
)

_PR_SET_PDEATHSIG = 1


def main(folder: Path, module: str, network: str) -> int:
    """Run one rank and return its exit code."""
    for number in (signal.SIGINT, signal.SIGTERM):  # the first CSX decides when the run ends
        signal.signal(number, signal.SIG_IGN)
    exit_with(folder / FIRST_FILE, 1)
    if network == env.MPI and not env.read().is_under_slurm:  # Slurm ends the processes of a step itself
        end_with_parent()
    ranks = _join(folder, network)
    if ranks.rank == 0:
        sign = Sign(rank_file(folder, 0))
        relay.serve(ranks, folder)
        ranks.finish()
        sign.close()
        return 0
    log = os.open(log_file(folder, ranks.rank), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for stream in (1, 2):
        os.dup2(log, stream)
    sign = Sign(rank_file(folder, ranks.rank))
    try:
        importlib.import_module(module).main(ranks, folder)
        ranks.finish()
    except BaseException as error:  # noqa: BLE001 - the first CSX reports it
        kind = f"{type(error).__name__}: " if not isinstance(error, CerebrasError) or _is_of_group(error) else ""
        text = f"{kind}{error}".strip()
        with suppress(OSError):  # a full disk
            error_file(folder, ranks.rank).write_text(text if text.endswith(".") else f"{text}.", encoding="utf-8")
            traceback.print_exc()
            sys.stderr.flush()
        end_at_once(1)  # MPI's own end would wait for the others
    sign.close()
    return 0


def end_with_parent() -> None:
    """Have the kernel kill this process when the process of MPI that has started it ends.

    While MPI starts, it holds Python's lock, so no thread could end the process.
    """
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _join(folder: Path, network: str) -> CheckedCollectives:
    """Return this process's rank. No call has a limit: the first CSX ends the run if a rank ends or hangs."""
    if network == env.MPI:
        return join_world(math.inf)
    environ = env.read()
    secret = (folder / relay.SECRET_FILE).read_bytes()
    return tcp.join(environ.slurm_rank, environ.slurm_ranks, folder, secret, math.inf)


def _is_of_group(error: BaseException) -> bool:
    return type(error).__name__ == "CollectiveError"


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), *sys.argv[2:]))
