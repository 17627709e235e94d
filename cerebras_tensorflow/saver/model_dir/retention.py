"""Retention of checkpoints, as in tf.compat.v1.train.Saver: the newest few, and one every few hours for good."""

from __future__ import annotations

import contextlib
import logging
import os
import time
from dataclasses import dataclass

from cerebras_tensorflow import files
from cerebras_tensorflow.errors import CheckpointError, CorruptCheckpointError
from cerebras_tensorflow.locations import object_location
from cerebras_tensorflow.saver.bundle.format import INDEX_SUFFIX, parse_data_path
from cerebras_tensorflow.saver.bundle.reader import BundleReader
from cerebras_tensorflow.saver.files.atomic import partial_path, remove_stale, reporting
from cerebras_tensorflow.saver.hdf5.reader import read_index
from cerebras_tensorflow.saver.model_dir.state import CheckpointState, read_state, write_state
from cerebras_tensorflow.saver.names import (
    MASKS_SUFFIX,
    META_SUFFIX,
    checkpoint_of_shard,
    files_of,
    is_model_dir_name,
    masks_path,
)

logger = logging.getLogger(__name__)

_HOUR_S = 3600.0


@dataclass(frozen=True)
class Policy:
    """Which checkpoints to keep.

    Attributes:
        keep_max: Number of newest checkpoints; 0 or None keeps all.
        keep_every_n_hours: Interval at which an older checkpoint is kept for good; None keeps no older one.
    """

    keep_max: int | None = 5
    keep_every_n_hours: float | None = None

    def __post_init__(self) -> None:
        if self.keep_max is not None and self.keep_max < 0:
            raise ValueError(f"keep_checkpoint_max={self.keep_max}: expected 0 (all) or a positive number")
        if self.keep_every_n_hours is not None and self.keep_every_n_hours <= 0:
            raise ValueError(f"keep_checkpoint_every_n_hours={self.keep_every_n_hours}: expected a positive number")


def advance(
    state: CheckpointState | None, path: str, saved_at_s: float, policy: Policy
) -> tuple[CheckpointState, list[str]]:
    """Return the state after a save, and the checkpoints to remove.

    Args:
        state: Before the save; None for the first.
        path: The checkpoint just saved.
        saved_at_s: When [s since 1970].
        policy: What to keep.

    Source:
        tf.compat.v1.train.Saver of TensorFlow 2.15. A checkpoint that leaves the newest few is kept for good if it was
        saved more than keep_every_n_hours after the last one kept for good (at first: after the first save). If all are
        kept, the state lists only the newest. Unlike in Saver, the time of the last one kept for good survives a
        restart: the state file has it, in the field of tf.train.CheckpointManager. As in that class, a time in the
        future counts as now: the clock was set back.
    """
    if not policy.keep_max:
        preserved = None if state is None else state.last_preserved_timestamp
        return CheckpointState(path, (path,), (saved_at_s,), preserved), []
    times = dict[str, float]()
    for other, stamp in [*_stamped(state, saved_at_s), (path, saved_at_s)]:
        times.pop(other, None)  # an edited state may list a checkpoint twice: the last place counts
        times[other] = min(stamp, saved_at_s)
    kept = list(times.items())
    preserved = kept[0][1] if state is None else state.last_preserved_timestamp
    preserved = kept[0][1] if preserved is None else min(preserved, saved_at_s)
    removed = []
    while len(kept) > policy.keep_max:
        oldest, stamp = kept.pop(0)
        period_s = None if policy.keep_every_n_hours is None else policy.keep_every_n_hours * _HOUR_S
        if period_s is not None and stamp > preserved + period_s:
            # Whole periods: after a pause of many periods one checkpoint stays, not one for each.
            preserved += (stamp - preserved) // period_s * period_s
        else:
            removed.append(oldest)
    return CheckpointState(path, tuple(p for p, _ in kept), tuple(s for _, s in kept), preserved), removed


def _stamped(state: CheckpointState | None, default_s: float) -> list[tuple[str, float]]:
    """Return the checkpoints of a state with their times; file times if the state has none."""
    if state is None:
        return []
    paths, stamps = state.all_model_checkpoint_paths, state.all_model_checkpoint_timestamps
    if len(paths) == len(stamps):
        return list(zip(paths, stamps, strict=True))
    return [(path, _file_time(path, default_s)) for path in paths]


def _file_time(path: str, default_s: float) -> float:
    for file in files_of(path):
        with contextlib.suppress(OSError):
            return os.stat(file).st_mtime
    return default_s


def record_save(model_dir: str, path: str, policy: Policy, saved_at_s: float | None = None) -> list[str]:
    """Add a committed checkpoint to a model_dir's state, and remove those past retention; return the removed ones.

    model_dir is a folder or a URL. The state is written first, so that it never names a removed checkpoint, even if the
    process dies.

    Raises:
        CheckpointError: If the state or the folder cannot be written.
    """
    location = object_location(model_dir)
    if location is not None:
        from cerebras_tensorflow.saver.model_dir import remote

        now_s = time.time() if saved_at_s is None else saved_at_s
        return remote.record_save(location, lambda state: advance(state, path, now_s, policy))
    folder = os.path.abspath(model_dir)
    path = os.path.abspath(path)
    try:
        state = read_state(folder)
    except CorruptCheckpointError as exc:
        logger.warning("%s A new one is written.", exc)
        state = None
    now_s = time.time() if saved_at_s is None else saved_at_s
    if state is not None:
        present = [(os.path.abspath(kept), stamp) for kept, stamp in _stamped(state, now_s) if files_of(kept)]
        paths, stamps = tuple(kept for kept, _ in present), tuple(stamp for _, stamp in present)
        state = CheckpointState(state.model_checkpoint_path, paths, stamps, state.last_preserved_timestamp)
    new_state, removed = advance(state, path, now_s, policy)
    write_state(folder, new_state)
    for old in removed:
        remove(old)
    return removed


def remove(path: str) -> None:
    """Remove all files of a checkpoint, in the order of `files_of` and each durably, and then its masks."""
    with reporting(path):
        masks = [masks_path(path)] if os.path.exists(masks_path(path)) else []
        for file in files_of(path) + masks:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(file)
            files.sync_folder(os.path.dirname(file))
    logger.debug("removed checkpoint %s", path)


def clean_up(model_dir: str) -> list[str]:
    """Remove the files that dead processes left behind while saving or removing checkpoints; return their paths.

    These are partial files whose process has ended, and data files, graphs and masks of a run's checkpoints that are
    gone. The caller holds the folder's lock (`atomic.FolderLock`), so no other process writes checkpoints there.

    Raises:
        CheckpointError: If a file cannot be removed.
    """
    folder = os.path.abspath(model_dir)
    removed = remove_stale(folder)
    for item in sorted(os.listdir(folder)):
        path = os.path.join(folder, item)
        if _is_orphan(path):
            with reporting(path):
                os.unlink(path)
            removed.append(path)
            logger.info("removed %s: no checkpoint uses it", path)
    return removed


def _is_orphan(path: str) -> bool:
    """Whether a file is named after a run's checkpoint that is gone or does not use it; False if that is unclear."""
    if path.endswith(MASKS_SUFFIX):
        checkpoint = path.removesuffix(MASKS_SUFFIX)
        return is_model_dir_name(checkpoint) and not files_of(checkpoint)
    if path.endswith(META_SUFFIX):
        checkpoint = path.removesuffix(META_SUFFIX)
        return is_model_dir_name(checkpoint) and files_of(checkpoint) == [path]
    bundle, shard = parse_data_path(path), checkpoint_of_shard(path)
    owner = bundle[0] if bundle is not None else shard
    if owner is None or not is_model_dir_name(owner):
        return False
    head = owner + INDEX_SUFFIX if bundle is not None else owner
    if os.path.exists(partial_path(head)):
        return False
    if not os.path.exists(head):
        return True
    try:
        if bundle is not None:
            with BundleReader(owner) as reader:
                return reader.num_shards != bundle[2]
        index = read_index(owner)
        return index is not None and os.path.basename(path) not in index.shards
    except CheckpointError:
        return False
