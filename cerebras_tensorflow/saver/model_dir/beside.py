"""Small files beside a checkpoint (its masks, its graph), in a folder or in object storage."""

from __future__ import annotations

import contextlib
import os

from cerebras_tensorflow.files import read_regular
from cerebras_tensorflow.locations import ObjectLocation, object_location
from cerebras_tensorflow.saver.files.atomic import write_file
from cerebras_tensorflow.saver.objects.store import Bucket


def write(path: str, content: bytes) -> None:
    """Replace a file or an object: readers see the old or the new content.

    Raises:
        CheckpointError: If it cannot be written.
    """
    location = object_location(path)
    if location is None:
        write_file(path, content)
    else:
        Bucket(location).put(location.key, content)


def read(path: str, most_bytes: int) -> bytes:
    """Return the content of a file or an object.

    Raises:
        FileNotFoundError: If there is none.
        OSError: If a file cannot be read, or the content is larger than allowed.
        CheckpointError: If an object cannot be read.
    """
    location = object_location(path)
    return read_regular(path, most_bytes) if location is None else _read_object(location, most_bytes)


def remove(path: str) -> None:
    """Remove a file or an object, if it exists."""
    location = object_location(path)
    if location is not None:
        Bucket(location).delete([location.key])
        return
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)


def _read_object(location: ObjectLocation, most_bytes: int) -> bytes:
    bucket = Bucket(location)
    size = bucket.size(location.key)
    if size is None:
        raise FileNotFoundError(str(location))
    if size > most_bytes:
        raise OSError(f"{location}: {size} bytes; at most {most_bytes} are expected")
    return bytes(bucket.get_range(location.key, 0, size)) if size else b""
