"""TensorFlow's shared writers of event files; only the most recently used ones stay open.

TensorFlow keeps one writer per folder, with a thread and an open file, until the process ends. A process that trains
many models (a parameter search, a test suite) would run out of threads and files.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from typing import Any

import tensorflow as tf

MOST_OPEN = 16

_lock = threading.Lock()
_open: OrderedDict[str, tuple[Any, int]] = OrderedDict()  # folder -> (writer, opened at [s]); last used is last
_closed: dict[str, Any] = {}


def event_writer(folder: str) -> Any:
    """Return a folder's writer from `tf.compat.v1.summary.FileWriterCache`.

    Call this for each use and keep no reference, since idle writers are closed. The next call reopens the writer with a
    new event file. Call it inside a graph: a new event file starts with the current graph.
    """
    writer = tf.compat.v1.summary.FileWriterCache.get(folder)
    now_s = int(time.time())
    with _lock:
        if _closed.pop(folder, None) is writer:
            writer.reopen()
        if folder not in _open or _open[folder][0] is not writer:
            _open[folder] = writer, now_s
        _open.move_to_end(folder)
        _close_idle(now_s)
    return writer


def _close_idle(now_s: int) -> None:
    """Close the least recently used writers."""
    while len(_open) > MOST_OPEN:
        folder, (writer, opened_s) = next(iter(_open.items()))
        if opened_s == now_s:
            return  # if reopened in the same second, it would truncate its own file, which has the same name
        writer.close()
        _closed[folder] = writer
        del _open[folder]
