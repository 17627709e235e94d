"""Small files beside a checkpoint (its graph), in a folder or in object storage."""

from __future__ import annotations

from cerebras_tensorflow.locations import object_location
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
