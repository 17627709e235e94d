"""Large freed buffers go back to the system."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import ctypes, sys
from cerebras_tensorflow.runtime.host.heap import return_large_buffers

def resident_bytes():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096

assert return_large_buffers()
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
for size in (30_000_000, 8_000_000):  # freeing the first would raise glibc's own threshold above the second
    blocks = [libc.malloc(size) for _ in range(8)]
    for block in blocks:
        ctypes.memset(block, 1, size)
    before = resident_bytes()
    for block in blocks[:-1]:
        libc.free(block)
    assert before - resident_bytes() > 6 * size, (size, before, resident_bytes())
    libc.free(blocks[-1])
"""


def test_freed_blocks_leave_the_resident_set_while_later_blocks_are_in_use() -> None:
    result = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, result.stderr
