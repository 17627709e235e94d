"""Relaying output: progress frames are taken out, everything else passes unchanged and without delay."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cerebras_tensorflow.progress import FRAME_END, FRAME_START
from csrun.relay import Frames

FRAME = FRAME_START + b"Training: 5 s" + FRAME_END
PIECES = st.sampled_from([b"text\n", b"\x1b[31mred\x1b[0m", b"\x1b", b"\x1b_other\x1b\\", b"\x00\xff", FRAME])


@given(st.lists(PIECES, max_size=12), st.lists(st.integers(0, 300), max_size=8))
def test_frames_are_extracted_wherever_the_stream_is_cut(pieces: list[bytes], cuts: list[int]) -> None:
    stream = b"".join(pieces)
    bounds = [0, *sorted(min(cut, len(stream)) for cut in cuts), len(stream)]
    frames, output, texts = Frames(), b"", []
    for begin, end in itertools.pairwise(bounds):
        if begin < end:
            part, shown = frames.split(stream[begin:end])
            output += part
            texts += shown
    rest, _ = frames.split(b"")
    assert output + rest == b"".join(piece for piece in pieces if piece != FRAME)
    assert texts == ["Training: 5 s"] * pieces.count(FRAME)


@pytest.mark.parametrize("output", [b"prompt: ", b"half a line", b"\x1b[1mbold", b"line\n"])
def test_output_without_frames_passes_at_once(output: bytes) -> None:
    assert Frames().split(output) == (output, [])


def test_a_stream_that_ends_within_a_frame_loses_nothing() -> None:
    frames = Frames()
    assert frames.split(b"end" + FRAME_START + b"Tr") == (b"end", [])
    assert frames.split(b"") == (FRAME_START + b"Tr", [])
