"""Writers of event files: TensorFlow's shared ones, of which only those used last stay open.

TensorFlow keeps one writer for each folder, with a thread and an open file, until the process ends. A process that
trains many models (a search over parameters, a test suite) would run out of both.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from typing import Any

import tensorflow as tf

MOST_OPEN = 16

_lock = threading.Lock()
_open: OrderedDict[str, tuple[Any, int]] = OrderedDict()  # folder -> writer, second of opening; last used stands last
_closed: dict[str, Any] = {}


def event_writer(folder: str) -> Any:
    """Return the writer of a folder's event files, that of `tf.compat.v1.summary.FileWriterCache`.

    Call it for each use, inside a graph (which a new event file gets), and keep no reference: a writer that was not
    used for long is closed. The next call opens it again, with an event file of its own.
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
    """Close the writers that were not used for longest."""
    while len(_open) > MOST_OPEN:
        folder, (writer, opened_s) = next(iter(_open.items()))
        if opened_s == now_s:
            return  # reopened in the same second, it would get a file of the same name and truncate it
        writer.close()
        _closed[folder] = writer
        del _open[folder]
