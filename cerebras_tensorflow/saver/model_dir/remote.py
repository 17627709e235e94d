"""The checkpoints of a model_dir in object storage: its `checkpoint` object, retention, and small objects beside them.

The `checkpoint` object is the same text as the file of this name in a folder. Each change of it is a conditional write:
if another process has changed it meanwhile, we read it again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace

from cerebras_tensorflow.errors import CheckpointError, CorruptCheckpointError
from cerebras_tensorflow.locations import ObjectLocation, object_location
from cerebras_tensorflow.saver.model_dir.state import STATE_NAME, CheckpointState, encode, parse
from cerebras_tensorflow.saver.names import MASKS_SUFFIX, META_SUFFIX, is_model_dir_name, step_of
from cerebras_tensorflow.saver.objects import writer
from cerebras_tensorflow.saver.objects.store import Bucket, ConflictError, Version

logger = logging.getLogger(__name__)

_ATTEMPTS = 20  # each loses against another process that has recorded a checkpoint


def read_state(folder: ObjectLocation) -> CheckpointState | None:
    """Return the state of a model_dir, with full URLs directly below it; None if it has none.

    Raises:
        CheckpointError: If it cannot be read.
        CorruptCheckpointError: If it is not a checkpoint state.
    """
    return _read(Bucket(folder), folder)[0]


def record_save(
    folder: ObjectLocation, change: Callable[[CheckpointState | None], tuple[CheckpointState, list[str]]]
) -> list[str]:
    """Change the state of a model_dir, then remove the checkpoints that it no longer needs; return these.

    Args:
        folder: The model_dir.
        change: Returns the new state and the checkpoints to remove. It may be called several times.

    Raises:
        CheckpointError: If the state or a checkpoint cannot be changed.
    """
    bucket = Bucket(folder)
    key = _key(folder, STATE_NAME)
    for _ in range(_ATTEMPTS):
        try:
            state, version = _read(bucket, folder)
        except CorruptCheckpointError as exc:
            logger.warning("%s A new one is written.", exc)
            state, version = None, bucket.version(key)
        new_state, removed = change(_without_removed(state))
        content = encode(new_state, lambda url: url.rpartition("/")[2])
        try:
            bucket.put_if(key, content, version)
        except ConflictError:
            found = bucket.get(key)
            if found is None or found[0] != content:  # otherwise only the answer to our own request was lost
                continue
        for url in removed:
            remove(url)
        return removed
    raise CheckpointError(
        f"{bucket.url(key)}: other processes change it all the time. Give each run its own model_dir."
    )


def checkpoints_in(folder: ObjectLocation) -> list[str]:
    """Return the URLs of all checkpoints with a model_dir name, newest step first, complete or not."""
    names = [name for name in Bucket(folder).children(folder.key)[0] if is_model_dir_name(name)]
    return [f"{folder}/{name}" for name in sorted(names, key=lambda name: (step_of(name) or 0, name), reverse=True)]


def remove(url: str) -> None:
    """Remove a checkpoint, its masks and its graph."""
    location = object_location(url)
    assert location is not None
    writer.remove(location)
    Bucket(location).delete([location.key + MASKS_SUFFIX, location.key + META_SUFFIX])
    logger.debug("removed checkpoint %s", url)


def _read(bucket: Bucket, folder: ObjectLocation) -> tuple[CheckpointState | None, Version | None]:
    key = _key(folder, STATE_NAME)
    found = bucket.get(key)
    if found is None:
        return None, None
    state = parse(bucket.url(key), found[0].decode("utf-8", "surrogateescape"))
    if not state.model_checkpoint_path:
        return None, found[1]

    # A copied model_dir may still name the original one: use the checkpoint of the same name here.
    def own(path: str) -> str:
        return f"{folder}/{path.rstrip('/').rpartition('/')[2]}"

    newest, kept = own(state.model_checkpoint_path), tuple(map(own, state.all_model_checkpoint_paths))
    return replace(state, model_checkpoint_path=newest, all_model_checkpoint_paths=kept), found[1]


def _without_removed(state: CheckpointState | None) -> CheckpointState | None:
    """Return a state without the checkpoints that are gone."""
    if state is None:
        return None
    stamps = state.all_model_checkpoint_timestamps
    if len(stamps) != len(state.all_model_checkpoint_paths):
        stamps = (0.0,) * len(state.all_model_checkpoint_paths)  # from another writer; nobody knows whose they are
    kept = [pair for pair in zip(state.all_model_checkpoint_paths, stamps, strict=True) if _exists(pair[0])]
    paths, times = tuple(path for path, _ in kept), tuple(stamp for _, stamp in kept)
    return CheckpointState(state.model_checkpoint_path, paths, times, state.last_preserved_timestamp)


def _exists(url: str) -> bool:
    location = object_location(url)
    return location is not None and writer.exists(location)


def _key(folder: ObjectLocation, name: str) -> str:
    return f"{folder.key}/{name}".lstrip("/")
