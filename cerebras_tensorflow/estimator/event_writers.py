"""TensorFlow's shared writers of event files; only the most recently used ones stay open.

TensorFlow keeps one writer per folder, with a thread and an open file, until the process ends. A process that trains
many models (a parameter search, a test suite) would run out of threads and files.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from cerebras_tensorflow import tf_private
from cerebras_tensorflow.logs import run_log

MOST_OPEN = 16
_FAILURES = (OSError, RuntimeError, tf.errors.OpError)  # TensorFlow raises RuntimeError for a full disk

_lock = threading.Lock()
_open: OrderedDict[str, tuple[Any, int]] = OrderedDict()  # folder -> (writer, opened at [s]); last used is last
_closed: dict[str, Any] = {}
_told: set[str] = set()
_made: set[str] = set()


class EventFile:
    """The event file of a folder. If writing fails, it logs one warning and the run goes on. Hooks may use it too.

    Args:
        folder: The folder.
    """

    def __init__(self, folder: str) -> None:
        self._folder = folder

    def add_summary(self, summary: Any, global_step: int | None = None) -> None:
        """Add a Summary, or a serialized one."""
        self._try(lambda writer: writer.add_summary(summary, global_step))

    def add_session_log(self, session_log: Any, global_step: int | None = None) -> None:
        """Add a SessionLog."""
        self._try(lambda writer: writer.add_session_log(session_log, global_step))

    def flush(self) -> None:
        """Write the events that were added so far."""
        self._try(_flush)

    def _try(self, write: Callable[[Any], None]) -> None:
        try:
            write(event_writer(self._folder))
        except _FAILURES as error:
            if self._folder not in _told:
                _told.add(self._folder)
                run_log.warning(
                    "The event file in %s cannot be written (%s). TensorBoard will lack values; the run goes on.",
                    *(self._folder, (str(error).splitlines() or [type(error).__name__])[0]),
                )


def _flush(writer: Any) -> None:
    writer.flush()
    path = tf_private.event_file(writer)
    if path not in _made:  # TensorFlow drops events without an error while it cannot create the file
        if not tf.io.gfile.exists(path):
            raise OSError(f"{path} cannot be created")
        _made.add(path)


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


def flush_below(folder: str) -> None:
    """Write the events of all writers of a folder and the folders below it to their files."""
    with _lock:
        writers = [writer for path, (writer, _) in _open.items() if f"{path}/".startswith(f"{folder}/")]
    for writer in writers:
        with contextlib.suppress(*_FAILURES):  # EventFile logs a warning
            writer.flush()


def _close_idle(now_s: int) -> None:
    """Close the least recently used writers."""
    while len(_open) > MOST_OPEN:
        folder, (writer, opened_s) = next(iter(_open.items()))
        if opened_s == now_s:
            return  # if reopened in the same second, it would truncate its own file, which has the same name
        writer.close()
        _closed[folder] = writer
        del _open[folder]
