"""wire, snappy, ordered_code, sstable, string_tensor: the encodings under a tensor bundle."""

import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cerebras_tensorflow.saver.bundle import ordered_code, snappy, sstable, string_tensor, wire
from cerebras_tensorflow.saver.files import extents
from cerebras_tensorflow.saver.files.checksum import combine, crc32c, mask, unmask


@given(st.integers(0, 2**64 - 1))
def test_varints_come_back(value: int) -> None:
    assert wire.decode_varint(wire.encode_varint(value), 0) == (value, len(wire.encode_varint(value)))


@given(st.integers(-(2**63), 2**63 - 1))
def test_negative_varints_come_back_as_int64(value: int) -> None:
    assert wire.as_signed(wire.decode_varint(wire.encode_varint(value), 0)[0]) == value


@pytest.mark.parametrize("data", [b"", b"\x80", b"\xff" * 11, b"\xff" * 9 + b"\x7f"])
def test_a_bad_varint_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match="varint"):
        wire.decode_varint(data, 0)


@given(st.binary(max_size=40))
def test_arbitrary_messages_are_parsed_or_refused(data: bytes) -> None:
    message = ""
    try:
        numbers = [number for number, _ in wire.fields(data)]
    except ValueError as exc:
        numbers, message = [], str(exc)
    assert message or all(number >= 0 for number in numbers)


@pytest.mark.parametrize(
    ("value", "encoded"),
    [(0, "80"), (1, "81"), (63, "bf"), (64, "c040"), (-1, "7f"), (-64, "40"), (-65, "3fbf"), (8191, "dfff")],
)
def test_signed_ordered_code_matches_the_published_table(value: int, encoded: str) -> None:
    # One dim of (value, 0) after: 0, "", 1 dim. Values worked out from the description of OrderedCode.
    key = ordered_code.slice_key(b"", ((value, 0),))
    assert key.hex() == "00" + "0001" + "0101" + encoded + "80"


@given(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=2, max_size=2))
def test_ordered_code_keeps_the_order(pair: list[int]) -> None:
    low, high = sorted(pair)
    assert ordered_code.slice_key(b"n", ((low, 0),)) <= ordered_code.slice_key(b"n", ((high, 0),))


def test_snappy_literals_and_overlapping_copies_are_decoded() -> None:
    literal = bytes([20, 60 << 2, 9]) + b"0123456789"
    assert snappy.decompress(literal + bytes([0b10 | 9 << 2, 10, 0])) == b"0123456789" * 2
    assert snappy.decompress(bytes([7, 0]) + b"a" + bytes([0b01 | 2 << 2, 1])) == b"a" * 7


@pytest.mark.parametrize(
    "data", [b"\x05\x10abc", bytes([4, 0b10, 9, 0]), b"\xff\xff\xff\xff\x0f", b"\x02\x00a\x00b\x00c"]
)
def test_bad_snappy_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"snappy|varint"):
        snappy.decompress(data)


@given(st.dictionaries(st.binary(max_size=30), st.binary(max_size=60), max_size=80))
def test_tables_come_back_in_key_order(pairs: dict[bytes, bytes]) -> None:
    assert list(sstable.read_table(sstable.write_table(sorted(pairs.items())))) == sorted(pairs.items())


def test_a_table_of_many_blocks_comes_back() -> None:
    pairs = [(b"layer_%06d/kernel" % number, b"v" * 40) for number in range(20_000)]
    assert list(sstable.read_table(sstable.write_table(pairs))) == pairs


def test_every_flipped_byte_of_a_table_is_found() -> None:
    table = sstable.write_table((b"name%d" % number, b"value") for number in range(5))
    for position in range(len(table)):
        damaged = bytearray(table)
        damaged[position] ^= 0x41
        with pytest.raises(ValueError):
            list(sstable.read_table(bytes(damaged)))


@given(st.binary(max_size=120))
def test_arbitrary_bytes_are_no_table(data: bytes) -> None:
    with pytest.raises(ValueError):
        list(sstable.read_table(data))


@given(st.lists(st.binary(max_size=20), max_size=10))
def test_string_elements_come_back_with_their_checksum(elements: list[bytes]) -> None:
    stored, crc = string_tensor.encode(elements)
    assert string_tensor.decode(stored, len(elements)) == (elements, crc)


def test_a_declared_count_of_strings_beyond_the_bytes_is_refused() -> None:
    with pytest.raises(ValueError, match="declared"):
        string_tensor.decode(b"\x00" * 8, 2**40)


@given(st.binary(max_size=50), st.integers(0, 50))
def test_checksums_continue_and_unmask(data: bytes, cut: int) -> None:
    assert crc32c(data[cut:], crc32c(data[:cut])) == crc32c(data)
    assert unmask(mask(crc32c(data))) == crc32c(data)


@given(st.binary(max_size=200), st.binary(max_size=200))
def test_checksums_combine(first: bytes, second: bytes) -> None:
    assert combine(crc32c(first), crc32c(second), len(second)) == crc32c(first + second)


def test_a_large_run_is_read_by_two_threads_with_the_same_checksum(tmp_path: Path) -> None:
    content = np.random.default_rng(3).integers(0, 256, (9 << 20) + 12345, np.uint8)
    (tmp_path / "x").write_bytes(b"head" + content.tobytes())
    fd = os.open(tmp_path / "x", os.O_RDONLY)
    try:
        expected = crc32c(content)
        target = np.empty_like(content)
        assert extents.fill_checked(fd, 4, target) == extents.checksum(fd, 4, content.size) == expected
        np.testing.assert_array_equal(target, content)
        with pytest.raises(EOFError):
            extents.checksum(fd, 5, content.size)
        with pytest.raises(EOFError):
            extents.fill_checked(fd, 5, target)
    finally:
        os.close(fd)
