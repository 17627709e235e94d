"""How long reading a piece of an HDF5 file may take: a damaged file can make libhdf5 loop for ever."""

from __future__ import annotations

import signal

MAX_CPU_S = 10
# Slower than any filter decompresses.
_LEAST_BYTES_PER_S = 20 << 20


def limit_time(num_bytes: int = 0) -> None:
    """Let this process use MAX_CPU_S more seconds of CPU time, until the next call. Then SIGPROF ends it.

    Args:
        num_bytes: Size of what it decompresses in this time [B]; allows some more time.
    """
    signal.setitimer(signal.ITIMER_PROF, MAX_CPU_S + num_bytes / _LEAST_BYTES_PER_S)
