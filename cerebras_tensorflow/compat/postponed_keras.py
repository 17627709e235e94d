"""Keras loads on its first use, not while TensorFlow is imported. It takes a third of the import's time.

TensorFlow imports Keras at its end, so that Keras can register its classes. Keras 3 registers none, and every way to
use it (tf.keras, tensorflow.keras, keras) loads it. If the user chooses Keras 2, it loads with TensorFlow as before.

Keras 2 imports pandas, for checks of the data that a user gives it. They load it on first use.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from types import ModuleType
from typing import Any

from cerebras_tensorflow.compat import finder
from cerebras_tensorflow.garbage import no_garbage_collection


def postpone() -> None:
    """Set this up before TensorFlow is imported."""
    finder.FINDER.surround("keras", _import_of_keras_3)
    finder.FINDER.surround("tf_keras", _import_of_keras)
    finder.FINDER.surround("tf_keras.src.engine.data_adapter", _pandas_on_first_use)


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


class _OnFirstUse(ModuleType):
    """Stands in for a module until someone asks for one of its names.

    Raises:
        ImportError: When a name is asked for, if the module's import fails with another error than this one.
    """

    def __getattr__(self, name: str) -> Any:
        try:
            module = _replaced(self)
        except ImportError as error:  # as Keras, which then does without the module
            if name.startswith("__"):
                raise AttributeError(name) from error
            setattr(self, name, _NoClass)
            return _NoClass
        except Exception as error:
            raise ImportError(
                f"Keras 2 uses {self.__name__}, whose import fails: {error}", name=self.__name__
            ) from error
        return getattr(module, name)


class _NoClass:
    """Stands in for a class of a module that cannot be imported: no value is an instance."""


def _replaced(stand_in: ModuleType) -> ModuleType:
    """Return the real module. The stand-in leaves sys.modules."""
    if sys.modules.get(stand_in.__name__) is stand_in:
        del sys.modules[stand_in.__name__]
    return importlib.import_module(stand_in.__name__)


@contextmanager
def _pandas_on_first_use() -> Iterator[None]:
    """Give `import pandas` a stand-in in this context; nothing changes if it is imported already, or not installed."""
    if "pandas" in sys.modules or importlib.util.find_spec("pandas") is None:
        yield
        return
    sys.modules["pandas"] = stand_in = _OnFirstUse("pandas")
    try:
        yield
    finally:
        if sys.modules.get("pandas") is stand_in:
            del sys.modules["pandas"]
