"""Removes data objects that no manifest names. Writers leave them if they die, lose a race, or replace a checkpoint."""

from __future__ import annotations

import datetime

from cerebras_tensorflow.locations import ObjectLocation
from cerebras_tensorflow.saver.objects import manifest as manifests
from cerebras_tensorflow.saver.objects.store import Bucket, StoredObject


def sweep(location: ObjectLocation, older_than_s: float, is_dry_run: bool = False) -> list[StoredObject]:
    """Remove the data objects at a location that no manifest names; return them.

    Args:
        location: A checkpoint, a folder of checkpoints, or a bucket.
        older_than_s: Younger objects stay: their writer may be alive [s]. Choose more than the longest save takes.
        is_dry_run: Whether only to return them.

    Raises:
        ValueError: If the age is not a number from 0.
        CheckpointError: If the bucket cannot be listed, a manifest is damaged, or an object cannot be removed.
    """
    if not older_than_s >= 0:
        raise ValueError(f"an age of {older_than_s:g} s: expected 0 or more")
    bucket = Bucket(location)
    now = datetime.datetime.now(datetime.timezone.utc)
    found: dict[str, list[StoredObject]] = {}
    for item in bucket.list(location.key):
        folder, _, name = item.key.rpartition("/")
        if manifests.DATA.fullmatch(name) and (now - item.modified).total_seconds() >= older_than_s:
            found.setdefault(folder, []).append(item)
    leftovers = []
    for folder, items in found.items():
        # Read the manifest after the listing: a writer that has committed meanwhile keeps its objects.
        used = _objects_of(bucket, folder)
        unused = [item for item in items if item.key.rpartition("/")[2] not in used]
        if not is_dry_run:
            bucket.delete([item.key for item in unused])
        leftovers += unused
    return leftovers


def _objects_of(bucket: Bucket, folder: str) -> frozenset[str]:
    found = manifests.read(bucket, folder)
    return frozenset() if found is None else frozenset(found[0].objects)
