"""Copies what a run writes into its work folder (event files, graph.pbtxt, performance.json) to object storage.

Only files that are new or changed are copied. A list in the work folder tells them, also to the next process: it copies
what a killed one has left, and nothing of a run that is no longer in the bucket. Compiled programs, the weight store,
and the files of processes that run together stay on this machine. The latter include their secret, so we list what is
copied, not what stays.
"""

from __future__ import annotations

import contextlib
import fnmatch
import json
import os
import shutil
import threading
from collections.abc import Iterator
from typing import TypeAlias

from cerebras_tensorflow import files
from cerebras_tensorflow.config.work_folder import work_folder
from cerebras_tensorflow.locations import ObjectLocation, object_location
from cerebras_tensorflow.saver.objects.store import Bucket

_EVENTS = "*tfevents*"
_FILES = (_EVENTS, "graph.pbtxt", "*.html", "predictions.npz")  # at the top of the folder
_FOLDERS = ("train", "eval", "eval_*", "performance", "plugins", "report", "trace")
_LIST = ".uploaded.json"  # of a work folder: path in it -> its state when it was copied or first seen
_MAX_LIST_BYTES = 64 << 20
_Change: TypeAlias = tuple[int, int]  # size [B], time of the last change [ns]

_lock = threading.Lock()


def begin(model_dir: str) -> str:
    """Make the work folder of a model_dir and return it. If model_dir is a URL, also take note of its files."""
    folder = work_folder(model_dir)
    with files.closed_to_others():
        os.makedirs(folder, exist_ok=True)
    if object_location(model_dir) is None:
        return folder
    with _lock:
        if _read_list(folder) is None:
            with contextlib.suppress(OSError):  # without the list, files that are here already are uploaded too
                _write_list(folder, dict(_files(folder)))
    return folder


def upload(model_dir: str) -> None:
    """Copy all new and changed files of a model_dir's work folder to their places below model_dir.

    Raises:
        CheckpointError: If one cannot be copied.
    """
    location = object_location(model_dir)
    if location is None:
        return
    folder = begin(model_dir)
    bucket = Bucket(location)
    with _lock:
        copied = _read_list(folder) or {}
        changed = {name: change for name, change in _files(folder) if copied.get(name) != change}
        for name, change in changed.items():
            bucket.put_file(_key(location, name), os.path.join(folder, name))
            copied[name] = change
            _write_list(folder, copied)


def upload_export(folder: str, url: str) -> None:
    """Move all files below a folder to object storage, those at its top last: a reader of a SavedModel looks for them.

    Raises:
        CheckpointError: If one cannot be copied.
    """
    location = object_location(url)
    assert location is not None
    bucket = Bucket(location)
    names = [os.path.relpath(os.path.join(base, name), folder) for base, _, found in os.walk(folder) for name in found]
    for name in sorted(names, key=lambda name: -name.count(os.sep)):
        bucket.put_file(_key(location, name), os.path.join(folder, name))
    shutil.rmtree(folder)


def download(url: str, folder: str, pattern: str) -> None:
    """Copy the objects directly below a URL whose names match a pattern into a folder.

    Raises:
        CheckpointError: If they cannot be listed or read.
    """
    location = object_location(url)
    assert location is not None
    bucket = Bucket(location)
    for item in bucket.list(location.key):
        name = item.key.removeprefix(f"{location.key}/")
        if "/" not in name and fnmatch.fnmatchcase(name, pattern):
            bucket.get_file(item.key, os.path.join(folder, name))


def is_written(name: str) -> bool:
    """Return whether a run writes a folder or an event file of this name in its model_dir."""
    return _fits(name, (*_FOLDERS, _EVENTS))


def _files(folder: str) -> Iterator[tuple[str, _Change]]:
    """Yield each file that is to be copied, as its path in the folder and its state."""
    for base, folders, names in os.walk(folder):
        if base == folder:
            folders[:] = [name for name in folders if _fits(name, _FOLDERS)]
            names = [name for name in names if _fits(name, _FILES)]
        for name in names:
            path = os.path.join(base, name)
            if not name.startswith(".") and os.path.isfile(path):
                status = os.stat(path)
                yield os.path.relpath(path, folder), (status.st_size, status.st_mtime_ns)


def _fits(name: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


def _read_list(folder: str) -> dict[str, _Change] | None:
    """Return the list of a work folder; None if it has none that can be read."""
    try:
        content = json.loads(files.read_regular(os.path.join(folder, _LIST), _MAX_LIST_BYTES))
        return {str(name): (int(size), int(time_ns)) for name, (size, time_ns) in content.items()}
    except (OSError, ValueError, TypeError, AttributeError, RecursionError, OverflowError):
        return None


def _write_list(folder: str, copied: dict[str, _Change]) -> None:
    files.write_text(os.path.join(folder, _LIST), json.dumps(copied))


def _key(location: ObjectLocation, name: str) -> str:
    return f"{location.key}/{name.replace(os.sep, '/')}".lstrip("/")
