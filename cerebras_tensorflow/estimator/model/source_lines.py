"""Where in the user's program an op was made, for messages about it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import tensorflow as tf

_PACKAGES = Path(tf.__file__).parent.parent
_NOT_THE_USERS = tuple(
    f"{folder}{os.sep}"
    for folder in (
        *(_PACKAGES / name for name in ("tensorflow", "tensorflow_estimator", "keras", "tf_keras")),
        Path(__file__).parent.parent,
    )
)


def source_line(operation: Any) -> str | None:
    """Return "model.py:41": the innermost line outside TensorFlow, Keras and this package that led to an op.

    Args:
        operation: A tf.Operation.

    Returns:
        The file as seen from the working folder if it lies there, else its whole path; None if no such line is known.
    """
    for frame in reversed(operation.traceback or ()):
        path = os.path.abspath(frame.filename)
        if not path.startswith(_NOT_THE_USERS) and os.path.exists(path):
            folder = f"{os.getcwd()}{os.sep}"
            return f"{path.removeprefix(folder)}:{frame.lineno}"
    return None


def with_source_line(note: str, graph: tf.Graph) -> str:
    """Return a note of the compiler with the place of the op that it is about.

    Args:
        note: "VARIABLE stays in memory: OP ..."; the first name of an op after the colon counts, else the variable's.
        graph: The graph that model_fn built.
    """
    name, _, reason = note.partition(": ")
    for word in (*reason.split(), name.split()[0]):
        try:
            line = source_line(graph.get_operation_by_name(word))
        except (KeyError, ValueError):
            continue
        if line:
            return f"{note} (made at {line})"
    return note
