"""The line of the user's program that made an op, for messages."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import tensorflow as tf

from cerebras_tensorflow.graph.exactness import InexactOp
from cerebras_tensorflow.graph.program import Note

_PACKAGES = Path(tf.__file__).parent.parent
_NOT_THE_USERS = tuple(
    f"{folder}{os.sep}"
    for folder in (
        *(_PACKAGES / name for name in ("tensorflow", "tensorflow_estimator", "keras", "tf_keras")),
        Path(__file__).parent.parent,
    )
)


def source_line(operation: Any) -> str | None:
    """Return the innermost line outside TensorFlow, Keras and this package that made an op, as "model.py:41".

    Args:
        operation: A tf.Operation.

    Returns:
        The path is relative to the working folder if the file is in it, else absolute. None if no line is known.
    """
    for frame in reversed(operation.traceback or ()):
        path = os.path.abspath(frame.filename)
        if not path.startswith(_NOT_THE_USERS) and os.path.exists(path):
            folder = f"{os.getcwd()}{os.sep}"
            return f"{path.removeprefix(folder)}:{frame.lineno}"
    return None


def with_source_line(note: Note | InexactOp, graph: tf.Graph) -> str:
    """Return the text of a compiler's note, with the line of the user's program that made the op.

    Args:
        note: We take the line of its first op with a known line, else that of its variable.
        graph: The graph of the model_fn.
    """
    for name in (*note.ops, note.variable) if isinstance(note, Note) else note.ops:
        try:
            line = source_line(graph.get_operation_by_name(name))
        except (KeyError, ValueError):
            continue
        if line:
            return f"{note.text} (made at {line})"
    return note.text
