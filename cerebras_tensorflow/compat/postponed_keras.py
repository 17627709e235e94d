"""Keras loads on its first use, not while TensorFlow is imported. It takes a third of the import's time.

TensorFlow imports Keras at its end, so that Keras can register its classes. Keras 3 registers none, and every way to
use it (tf.keras, tensorflow.keras, keras) loads it. If the user chooses Keras 2, it loads with TensorFlow as before.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from cerebras_tensorflow.compat import finder
from cerebras_tensorflow.garbage import no_garbage_collection


def postpone() -> None:
    """Set this up before TensorFlow is imported."""
    finder.FINDER.surround("keras", _import_of_keras_3)
    finder.FINDER.surround("tf_keras", _import_of_keras)


@contextmanager
def _import_of_keras_3() -> Iterator[None]:
    """Import Keras 3 in this context.

    Raises:
        ImportError: If TensorFlow imports it while it is imported itself. It ignores this error.
    """
    if _is_asked_by_tensorflow():
        raise ImportError("Keras 3 loads on its first use")
    with _import_of_keras():
        yield


@contextmanager
def _import_of_keras() -> Iterator[None]:
    """Import Keras quickly, and outside of the graph of a model_fn, as if TensorFlow had imported it."""
    with ExitStack() as context:
        context.enter_context(no_garbage_collection())
        tensorflow = sys.modules.get("tensorflow")
        if hasattr(tensorflow, "init_scope"):  # else Keras imports TensorFlow, or TensorFlow is not done
            context.enter_context(tensorflow.init_scope())  # type: ignore[union-attr]
        yield


def _is_asked_by_tensorflow() -> bool:
    """Whether the file of the package `tensorflow` runs the innermost import."""
    import inspect  # here, because every command imports this module

    frame = inspect.currentframe()
    while frame is not None:
        name = str(frame.f_globals.get("__name__"))
        if not name.startswith(("importlib", "contextlib", "cerebras_tensorflow.compat")):
            return name == "tensorflow"
        frame = frame.f_back
    return False
