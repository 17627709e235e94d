"""The manifest of a checkpoint in object storage: two lines of JSON; the first has the checksum of the second."""

from __future__ import annotations

import json
import logging
import re
from dataclasses import dataclass
from typing import Any

from cerebras_tensorflow.errors import CorruptCheckpointError
from cerebras_tensorflow.saver.files.checksum import crc32c
from cerebras_tensorflow.saver.hdf5.index import H5Record, record_of, values_of
from cerebras_tensorflow.saver.objects.store import Bucket

logger = logging.getLogger(__name__)

NAME = "manifest.json"
DATA = re.compile(r"data-[0-9a-f]+-\d{5,9}")

# Readers fetch and check pieces of this size; it is part of the format.
PIECE_BYTES = 8 << 20

_FORMAT = "cerebras_tensorflow checkpoint"
_VERSION = 1
_READS = 4


@dataclass(frozen=True)
class Manifest:
    """What a checkpoint consists of: one stream of bytes, cut into objects.

    Attributes:
        records: Place of each tensor in the stream.
        objects: Name of each data object beside the manifest, in the order of the stream.
        sizes: Size of each [B].
        checks: CRC-32C of each piece of PIECE_BYTES of each object.
    """

    records: dict[str, H5Record]
    objects: tuple[str, ...]
    sizes: tuple[int, ...]
    checks: tuple[tuple[int, ...], ...]


def num_pieces(size: int) -> int:
    """Return the number of pieces in an object of this size [B]."""
    return -(-size // PIECE_BYTES)


def encode(manifest: Manifest) -> bytes:
    """Return the bytes of a manifest."""
    objects = [
        [name, size, [f"{crc:08x}" for crc in checks]]
        for name, size, checks in zip(manifest.objects, manifest.sizes, manifest.checks, strict=True)
    ]
    tensors = {name: values_of(record) for name, record in manifest.records.items()}
    content = {"piece_bytes": PIECE_BYTES, "objects": objects, "tensors": tensors}
    body = json.dumps(content, separators=(",", ":")).encode()
    head = {"format": _FORMAT, "version": _VERSION, "crc32c": f"{crc32c(body):08x}"}
    return json.dumps(head).encode() + b"\n" + body + b"\n"


def decode(url: str, content: bytes) -> Manifest:
    """Return the manifest that these bytes encode.

    Raises:
        CorruptCheckpointError: If they are damaged, or not a manifest.
    """
    try:
        first, _, body = content.partition(b"\n")
        head = json.loads(first)
        if head.get("format") != _FORMAT or head.get("version") != _VERSION:
            raise ValueError(f"it is of format {head.get('format')!r}, version {head.get('version')!r}")
        body = body.removesuffix(b"\n")
        if crc32c(body) != int(head["crc32c"], 16):
            raise ValueError("it fails its checksum")
        return _parse(json.loads(body))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as exc:
        raise CorruptCheckpointError(f"{url}: not a manifest, or damaged: {exc}. Use another checkpoint.") from exc


def read(bucket: Bucket, folder: str) -> tuple[Manifest, bytes] | None:
    """Return a checkpoint's manifest, and its bytes; None if there is none.

    If it is damaged, read it again: the network may have damaged it.

    Raises:
        CheckpointError: If it cannot be read.
        CorruptCheckpointError: If it is damaged at every attempt.
    """
    key = f"{folder}/{NAME}"
    reads = 0
    while True:
        reads += 1
        found = bucket.get(key)
        if found is None:
            return None
        try:
            return decode(bucket.url(key), found[0]), found[0]
        except CorruptCheckpointError:
            if reads == _READS:
                raise
            logger.warning("%s: the manifest is damaged: it is read again", bucket.url(key))


def _parse(content: Any) -> Manifest:
    if content["piece_bytes"] != PIECE_BYTES:
        raise ValueError(f"its pieces have {content['piece_bytes']} bytes")
    objects = tuple(name for name, _, _ in content["objects"])
    sizes = tuple(size for _, size, _ in content["objects"])
    checks = tuple(tuple(int(crc, 16) for crc in crcs) for _, _, crcs in content["objects"])
    # A name from elsewhere must not lead to another folder.
    if any(not isinstance(name, str) or not DATA.fullmatch(name) for name in objects):
        raise ValueError("an object's name is not the name of a data object")
    if any(type(size) is not int or size <= 0 for size in sizes):
        raise ValueError("an object's size is not a positive whole number")
    if any(len(crcs) != num_pieces(size) for size, crcs in zip(sizes, checks, strict=True)):
        raise ValueError("an object does not have a checksum for each of its pieces")
    records = {name: record_of(name, values, sum(sizes), 0) for name, values in content["tensors"].items()}
    if any(record.offset < 0 for record in records.values()):
        raise ValueError("a tensor's offset is negative")
    return Manifest(records, objects, sizes, checks)
