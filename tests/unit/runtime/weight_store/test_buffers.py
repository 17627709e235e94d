"""Buffers are aligned, reused once unreferenced, and freed beyond a limit."""

from __future__ import annotations

import numpy as np
import pytest

from cerebras_tensorflow.runtime.weight_store.buffers import PAGE_BYTES, Buffers, aligned_buffer, private_copy

MEGABYTE = 1 << 20


@pytest.mark.parametrize("num_bytes", [1, 4096, 300_000, 5 * MEGABYTE + 3])
def test_a_buffer_has_its_size_and_starts_at_a_page(num_bytes: int) -> None:
    for buffer in (Buffers().take(num_bytes), aligned_buffer(num_bytes)):
        assert buffer.size == num_bytes and buffer.dtype == np.uint8
        assert buffer.ctypes.data % PAGE_BYTES == 0


def test_a_buffer_is_used_again_when_the_last_view_of_it_is_gone() -> None:
    buffers = Buffers()
    first = buffers.take(MEGABYTE)
    address = first.ctypes.data
    view = first[4096:8192].view(np.float32).reshape(2, -1)
    view[:] = 7
    del first
    other = buffers.take(MEGABYTE)
    assert other.ctypes.data != address
    assert (view == 7).all() and buffers.idle_bytes == 0
    del view
    assert buffers.idle_bytes == MEGABYTE
    assert buffers.take(MEGABYTE).ctypes.data == address


def test_idle_buffers_beyond_the_limit_are_freed() -> None:
    buffers = Buffers(max_idle_bytes=3 * MEGABYTE)
    small, middle, large = (buffers.take(count * MEGABYTE) for count in (1, 2, 4))
    address = middle.ctypes.data
    del large
    assert buffers.idle_bytes == 0  # one that is larger than the limit is never kept
    del small
    assert buffers.idle_bytes == MEGABYTE
    del middle
    assert buffers.idle_bytes == 3 * MEGABYTE
    again = buffers.take(2 * MEGABYTE)
    assert again.ctypes.data == address
    buffers.close()
    assert buffers.idle_bytes == 0
    again[:] = 1  # what is out stays valid


def test_a_private_copy_is_a_copy_at_a_page() -> None:
    value = np.arange(10, dtype=np.int16).reshape(2, 5)[:, ::2]
    copy = private_copy(value)
    assert copy.ctypes.data % PAGE_BYTES == 0
    copy += 1
    np.testing.assert_array_equal(copy, value + 1)
