"""Memory that other processes of this user on this machine can read."""

from __future__ import annotations

import errno
import json
import mmap
import os
import stat
import subprocess
import sys
from contextlib import suppress

import numpy as np
import pytest

from cerebras_tensorflow.graph.program import WeightSpec
from cerebras_tensorflow.runtime.weight_store.memory import MemoryStore
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
    memory = SharedMemory(1 << 16)
    inode = os.fstat(memory.about()["file"]).st_ino
    assert memory.take(100) is not None
    assert inode in inodes_of_descriptors()
    del memory
    assert inode not in inodes_of_descriptors()


def inodes_of_descriptors() -> set[int]:
    inodes = set()
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):  # the descriptor with which the list was read
            inodes.add(os.fstat(int(name)).st_ino)
    return inodes


def test_only_this_user_can_open_the_memory_and_nobody_changes_its_size() -> None:
    memory = SharedMemory(1 << 16)
    fd = memory.about()["file"]
    assert stat.S_IMODE(os.fstat(fd).st_mode) == 0o600
    for num_bytes in (1, 1 << 20):
        with pytest.raises(PermissionError):
            os.ftruncate(fd, num_bytes)


def allocated(memory: SharedMemory) -> int:
    """Return the size of all pages in MiB, rounded down: some pages beside the weights do not count."""
    return (os.fstat(memory.about()["file"]).st_blocks * 512) >> 20


def test_the_copies_of_a_snapshot_are_given_back_without_another_one() -> None:
    specs = [WeightSpec(f"w{number}", "float32", (1 << 18,), 1 << 20) for number in range(3)]
    store = MemoryStore(specs, is_shared=True)
    assert store.memory is not None

    def write_all(value: float) -> None:
        for index in range(len(specs)):
            store.write(index, np.full(1 << 18, value, np.float32))

    write_all(1)
    alone = allocated(store.memory)
    snapshot = store.snapshot()
    write_all(2)
    assert allocated(store.memory) == alone + 3
    snapshot.release(0)
    assert allocated(store.memory) == alone + 2
    snapshot.close()
    assert allocated(store.memory) == alone
    snapshot, used_by_a_step = store.snapshot(), store.view_slice(0, 0, 9)
    write_all(3)
    store.memory._max_idle_bytes = 0
    snapshot.close()
    assert used_by_a_step.tolist() == [2] * 9
    assert allocated(store.memory) > alone
    del used_by_a_step
    store.between_steps()
    assert allocated(store.memory) == alone
    store.close()


@pytest.mark.parametrize("call", ["memfd_create", "ftruncate", "mmap"])
def test_a_store_without_shared_memory_takes_its_own(call: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*_: object, **__: object) -> int:
        raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))

    if call == "memfd_create":
        monkeypatch.delattr(os, call)  # as in a Python for an old C library
    else:
        monkeypatch.setattr(mmap if call == "mmap" else os, call, failing)
    store = MemoryStore([WeightSpec("w", "float32", (3,), 12)], is_shared=True)
    monkeypatch.undo()
    assert store.memory is None
    store.write(0, np.full(3, 5, np.float32))
    snapshot = store.snapshot()
    store.write(0, np.zeros(3, np.float32))
    assert next(snapshot.pieces(0)).view(np.float32).tolist() == [5] * 3
    snapshot.release(0)
    snapshot.close()
    store.close()
