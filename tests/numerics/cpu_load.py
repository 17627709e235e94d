"""A busy processor, for tests whose results must not depend on timing."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

_CODE = "import os, time; os.nice(19); end = time.monotonic() + {}\nwhile time.monotonic() < end: sum(range(9999))"


@contextmanager
def cpu_load(num_processes: int | None = None, most_s: int = 120) -> Iterator[None]:
    """Keep CPUs busy from other processes, at low priority.

    Args:
        num_processes: None: two, or one on a machine of one CPU.
        most_s: Time after which the load ends by itself [s].
    """
    count = num_processes or min(2, os.cpu_count() or 1)
    processes = [subprocess.Popen([sys.executable, "-c", _CODE.format(most_s)]) for _ in range(count)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()
