"""Parts of a checkpoint that several processes write: where the bytes of a tensor go, and what was written there.

The process with the writer places a tensor and sends the `Part` to the process that has the values. That one writes
the bytes and answers with `Written`. Both are plain values, and are sent as JSON.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass


@dataclass(frozen=True)
class Part:
    """Where the bytes of one tensor go.

    Attributes:
        path: A file, or the URL of a checkpoint in object storage.
        num_bytes: Size of the tensor [B].
        offset: Of the first byte in the file.
        inode: Number of the file, which tells it from another one of this name.
        objects: Name and size [B] of each object that the tensor fills, in order; none for a file.
    """

    path: str
    num_bytes: int
    offset: int = 0
    inode: int = 0
    objects: tuple[tuple[str, int], ...] = ()

    def to_json(self) -> bytes:
        """Return the part as JSON."""
        return json.dumps(asdict(self)).encode()

    @classmethod
    def from_json(cls, text: bytes) -> Part:
        """Return the part that JSON describes."""
        fields = json.loads(text)
        return cls(**{**fields, "objects": tuple((name, size) for name, size in fields["objects"])})


@dataclass(frozen=True)
class Written:
    """What was written.

    Attributes:
        crc: CRC-32C of the tensor's bytes.
        checks: For each object, the CRC-32C of each of its pieces.
    """

    crc: int
    checks: tuple[tuple[int, ...], ...] = ()

    def to_json(self) -> bytes:
        """Return the values as JSON."""
        return json.dumps([self.crc, self.checks]).encode()

    @classmethod
    def from_json(cls, text: bytes) -> Written:
        """Return the values that JSON describes."""
        crc, checks = json.loads(text)
        return cls(int(crc), tuple(tuple(piece) for piece in checks))


def even_sizes(num_bytes: int, largest: int) -> Sequence[int]:
    """Return the sizes of the fewest objects for a tensor [B]. They differ by one byte at most.

    >>> even_sizes(10, 4)
    [4, 3, 3]
    """
    count = -(-num_bytes // largest)
    return [num_bytes // count + (number < num_bytes % count) for number in range(count)]
