"""Checksums of a weight in memory follow the bounds of its updates and find every flipped bit."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cerebras_tensorflow.runtime.weight_store.checksums import DamagedPiece, Sums, check

SIZE = 1000


def content() -> np.ndarray:
    return np.random.default_rng(1).integers(0, 256, SIZE, dtype=np.uint8)


def check_all(sums: Sums, whole: np.ndarray) -> None:
    for start, stop, expected in sums.pieces():
        check(whole, start, stop, expected)


def test_bytes_without_a_note_have_no_checksum() -> None:
    sums = Sums(SIZE)
    assert sums.pieces() == [(0, SIZE, None)]
    check_all(sums, content())
    assert Sums(0).pieces() == []


def test_a_whole_weight_is_cut_into_equal_pieces() -> None:
    sums = Sums(SIZE)
    sums.note(0, content(), 300)
    assert [(start, stop) for start, stop, _ in sums.pieces()] == [(0, 300), (300, 600), (600, 900), (900, 1000)]
    assert [start for start, _, _ in sums.between(299, 601)] == [0, 300, 600]
    assert sums.between(300, 300) == []


@settings(deadline=None)  # a loaded machine is slow, not wrong
@given(
    st.lists(st.tuples(st.integers(0, SIZE - 1), st.integers(1, SIZE)), max_size=8),
    st.integers(0, SIZE - 1),
    st.integers(0, 7),
)
def test_after_any_updates_every_flipped_bit_is_found(updates: list[tuple[int, int]], byte: int, bit: int) -> None:
    whole, sums = content(), Sums(SIZE)
    sums.note(0, whole, 128)
    for start, length in updates:
        stop = min(start + length, SIZE)
        sums.cut(whole, start)
        sums.cut(whole, stop)
        sums.forget(start, stop)
        whole[start:stop] += np.uint8(3)
        check_all(sums, whole)  # what is not being updated
        sums.note(start, whole[start:stop])
    check_all(sums, whole)
    pieces = sums.pieces()
    assert [start for start, _, _ in pieces] == [0, *(stop for _, stop, _ in pieces[:-1])] and pieces[-1][1] == SIZE
    whole[byte] ^= np.uint8(1 << bit)
    with pytest.raises(DamagedPiece) as raised:
        check_all(sums, whole)
    assert raised.value.start <= byte < raised.value.stop


def test_a_damaged_piece_cannot_be_cut_unnoticed() -> None:
    whole, sums = content(), Sums(SIZE)
    sums.note(0, whole)
    whole[700] ^= np.uint8(1)
    with pytest.raises(DamagedPiece):
        sums.cut(whole, 200)


def test_pieces_are_replaced_whole_or_not_at_all() -> None:
    sums = Sums(SIZE)
    with pytest.raises(ValueError, match="bytes 10 to 20 are not whole pieces"):
        sums.note(10, content()[10:20])
