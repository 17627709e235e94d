"""Memory that other processes of this user on this machine can read."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import numpy as np
import pytest

from cerebras_tensorflow.runtime.weight_store.shared_memory import SharedMemory, Window

READER = """
import json, sys
from cerebras_tensorflow.runtime.weight_store.shared_memory import Window
about = json.loads(sys.argv[1])
window = Window.open(about)
print(window.view(int(sys.argv[2]), 8).tolist())
try:
    window.view(int(sys.argv[2]), 8)[0] = 1
except ValueError as error:
    print(error)
"""


def place(memory: SharedMemory, value: np.ndarray) -> np.ndarray:
    part = memory.take(value.nbytes)
    assert part is not None
    np.copyto(part, value)
    return part


def test_another_process_reads_the_memory_and_cannot_change_it() -> None:
    memory = SharedMemory(1 << 16)
    part = place(memory, np.arange(8, dtype=np.uint8))
    words = [sys.executable, "-c", READER, json.dumps(memory.about()), str(memory.offset_of(part))]
    said = subprocess.run(words, capture_output=True, text=True, check=True).stdout.splitlines()
    assert said == ["[0, 1, 2, 3, 4, 5, 6, 7]", "assignment destination is read-only"]


def test_a_window_shows_changes_and_lives_on_after_the_memory() -> None:
    memory = SharedMemory(1 << 16)
    part = place(memory, np.zeros(8, np.uint8))
    window, offset = Window.open(memory.about()), memory.offset_of(part)
    assert window is not None
    assert offset is not None
    part[:] = 7
    del part, memory
    assert window.view(offset, 8).tolist() == [7] * 8
    with pytest.raises(ValueError, match="buffer"):
        window.view(1 << 20, 8)


@pytest.mark.parametrize("other", [{"token": "00" * 32}, {"size": 4096}, {"process": 2**22 + 1}, {"file": 0}])
def test_memory_that_is_not_the_announced_one_is_not_opened(other: dict[str, object]) -> None:
    memory = SharedMemory(1 << 16)
    assert Window.open(memory.about() | other) is None


def test_what_no_array_refers_to_is_handed_out_again() -> None:
    memory = SharedMemory(3 * 8192, max_idle_bytes=8192)
    kept = [place(memory, np.full(8000, number, np.uint8)) for number in range(3)]
    offsets = [memory.offset_of(part) for part in kept]
    assert memory.take(1) is None
    view = kept[1][:5]
    del kept[1:]
    again = memory.take(8000)
    assert again is not None
    assert memory.offset_of(again) == offsets[2]
    assert memory.take(8000) is None  # a view of it is left
    del view, again
    both = [memory.take(8000), memory.take(8000)]
    assert {memory.offset_of(part) for part in both if part is not None} == {*offsets[1:]}
    freed = [bytes(part[:4]) for part in both if part is not None]
    assert bytes(4) in freed  # beyond the idle bytes, the system got the pages back
    assert memory.offset_of(np.zeros(3)) is None


def test_memory_that_the_system_refuses_is_none() -> None:
    assert SharedMemory.create(1 << 60) is None


def test_no_file_and_no_descriptor_is_left() -> None:
    before = os.listdir("/proc/self/fd")
    memory = SharedMemory(1 << 16)
    assert memory.take(100) is not None
    del memory
    assert len(os.listdir("/proc/self/fd")) == len(before)
