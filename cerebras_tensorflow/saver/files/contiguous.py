"""Writing the bytes of one tensor as one run of a file."""

from __future__ import annotations

from collections.abc import Iterable

from cerebras_tensorflow.holes import is_hole, leave_hole
from cerebras_tensorflow.saver.files.atomic import reporting
from cerebras_tensorflow.saver.files.checksum import crc32c
from cerebras_tensorflow.saver.files.writeback import WriteBehind
from cerebras_tensorflow.saver.interface import BytesLike, flat_view

_PIECE_BYTES = 4 << 20


def write_run(
    behind: WriteBehind, name: str, offset: int, num_bytes: int, chunks: Iterable[BytesLike], path: str
) -> int:
    """Write a tensor's bytes into a part of a new file; return their CRC-32C.

    Args:
        behind: The file.
        name: The tensor, for errors.
        offset: Where the part begins.
        num_bytes: Its size [B].
        chunks: The bytes, in pieces of any size.
        path: The checkpoint, for errors.

    Raises:
        ValueError: If the pieces have another size together.
        CheckpointError: If the file cannot be written.
    """
    crc = done = 0
    for chunk in chunks:
        view = flat_view(chunk)
        for start in range(0, view.size, _PIECE_BYTES):
            piece = view[start : start + _PIECE_BYTES]
            if done + piece.size > num_bytes:
                raise ValueError(f"{name}: the chunks hold more than the {num_bytes} bytes of its shape and type")
            crc = crc32c(piece, crc)
            with reporting(path):
                if is_hole(piece):
                    leave_hole(behind.fd, offset + done, piece.size)
                else:
                    behind.write_at(piece.data, offset + done)
            done += piece.size
    if done != num_bytes:
        raise ValueError(f"{name}: the chunks hold {done} bytes, its shape and type need {num_bytes}")
    return crc
