"""Decides which old names a process gets. This depends on how it was started and what it imports.

| function: called by | names that it restores |
|---|---|
| `names()`: cerebras_tensorflow | tf.train for URLs; tf.estimator, if missing; the wheel's names; terminal.py |
| `plain_script()`: roots/autoload, on importing TensorFlow | as `names()`; `launched()` with Estimators |
| `old_script()`: the packages of roots/ | as `names()`, Keras 2; old names in Keras, TensorFlow, protobuf |
| `launched()`: roots/launched/sitecustomize.py | as `old_script()`; names that Python and NumPy dropped since 3.7 |
"""

from __future__ import annotations

import functools
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from types import ModuleType

from cerebras_tensorflow import terminal
from cerebras_tensorflow.compat import finder, postponed_keras, python_names, wheel
from cerebras_tensorflow.config import env
from cerebras_tensorflow.garbage import permanent_objects

_done: set[str] = set()
_ESTIMATOR = re.compile(
    rb"\btf(\.compat\.v1)?\.estimator\b|\btensorflow(\.compat\.v1|\.python)?[._ ](import )?estimator\b"
)
_MAX_MODULES = 50
_MAX_BYTES = 1_000_000


def names() -> None:
    """Make tf.estimator and the modules of the table importable, without importing TensorFlow."""
    if "names" in _done:
        return
    _done.add("names")
    finder.install()
    terminal.set_up()
    finder.FINDER.surround("tensorflow", _import_of_tensorflow)
    postponed_keras.postpone()
    finder.FINDER.watch("tensorflow", _give_estimator)
    finder.FINDER.watch("tensorflow", _give_checkpoints)
    finder.FINDER.watch("tf_keras.src.backend", _give_loops)
    for module, version in _COMPAT_MODULES.items():
        finder.FINDER.watch(module, _give_checkpoints)
        finder.FINDER.watch(module, functools.partial(_give_compat, version=version))
    finder.FINDER.watch("keras._tf_keras.keras", _give_model_to_estimator)


@contextmanager
def _import_of_tensorflow() -> Iterator[None]:
    """Import TensorFlow quietly and quickly."""
    with permanent_objects(), terminal.quiet_import():
        yield


def plain_script() -> None:
    """Set up a script that does not import this package. If it uses Estimators, it gets the names of old scripts."""
    names()
    main = getattr(sys.modules.get("__main__"), "__file__", None)
    if main is not None and not finder.tensorflow_has_estimator() and _uses_estimators(Path(main)):
        launched()


def _uses_estimators(main: Path) -> bool:
    """Whether a script or a module beside it mentions tf.estimator. Such a script was written for Keras 2."""
    try:
        words = set(re.findall(rb"\w+", main.read_bytes()[:_MAX_BYTES]))
    except OSError:
        return False
    # Modules that the script does not name may belong to other programs.
    named = (path for path in main.parent.glob("*.py") if path.stem.encode(errors="replace") in words)
    for path in [main, *islice(named, _MAX_MODULES)]:
        try:
            text = path.read_bytes()[:_MAX_BYTES]
        except OSError:
            continue
        if _ESTIMATOR.search(text):
            return True
    return False


def old_script() -> None:
    """Set up a script of a Cerebras release: also Keras 2, its old names, and protobuf's old keyword."""
    names()
    if "old_script" in _done:
        return
    _done.add("old_script")
    env.use_keras_2()
    finder.FINDER.watch("tensorflow", _give_keras)
    finder.FINDER.watch("google.protobuf.json_format", python_names.restore_json_format)


def launched() -> None:
    """Set up a process that runs one old script: also the names that Python and NumPy have dropped."""
    old_script()
    if "launched" in _done:
        return
    _done.add("launched")
    restored = python_names.restore_standard_library()
    finder.FINDER.watch("numpy", python_names.restore_numpy)
    finder.FINDER.watch("scipy.sparse", python_names.restore_scipy)
    finder.FINDER.watch("nltk.util", python_names.restore_nltk)
    import logging  # here, because every command imports this module and only this function logs

    logger = logging.getLogger(__name__)
    logger.info("Restored names that Python and NumPy have dropped: %s.", ", ".join(restored))


_COMPAT_MODULES = {
    f"{root}.compat.{path}": path[-2:]
    for root in ("tensorflow", "tensorflow._api.v2")
    for path in ("v1", "v2", "v1.compat.v1", "v1.compat.v2", "v2.compat.v1", "v2.compat.v2")
}
"""Module of tf.compat that has an estimator -> its API version. TensorFlow loads these files under two names each."""


def _give_estimator(tensorflow: ModuleType) -> None:
    if not finder.tensorflow_has_estimator():
        _set(tensorflow, "estimator", finder.import_table_module("tensorflow.estimator"))


def _give_checkpoints(module: ModuleType) -> None:
    """Let tf.train, or tf.compat.v1.train, read checkpoints in object storage."""
    from cerebras_tensorflow.compat import tensorflow_checkpoints

    if hasattr(module, "train"):
        tensorflow_checkpoints.restore(module.train)


def _give_compat(module: ModuleType, version: str) -> None:
    """Give a module of tf.compat its estimator, and with Keras 3 the layers and RNN cells that only Keras 2 has."""
    if finder.tensorflow_has_estimator():
        return
    _set(module, "estimator", finder.import_table_module(f"tensorflow.compat.{version}.estimator"))
    if version == "v1" and not env.is_keras_2():
        _set(module, "layers", finder.LazyModule("tensorflow.compat.v1.layers", wheel.legacy_layers))
        cells = finder.LazyModule("tensorflow.compat.v1.nn.rnn_cell", wheel.legacy_rnn_cells)
        _set(module.nn, "rnn_cell", cells)


def _give_model_to_estimator(keras: ModuleType) -> None:
    """Give Keras 3 a module `estimator`, whose function says how to use a model of Keras 2."""
    if not finder.tensorflow_has_estimator():
        keras.estimator = finder.import_table_module("tensorflow.keras.estimator")  # type: ignore[attr-defined]


def _set(module: ModuleType, name: str, value: ModuleType) -> None:
    """Set an attribute of a module and of its wrapper in sys.modules, to which TensorFlow copies the attributes."""
    for place in (module, sys.modules.get(module.__name__, module)):
        setattr(place, name, value)


def _give_loops(backend: ModuleType) -> None:
    from cerebras_tensorflow.compat import keras_names

    keras_names.let_rnn_loop(backend)


def _give_keras(tensorflow: ModuleType) -> None:
    from cerebras_tensorflow.compat import keras_names, tensorflow_names

    tensorflow_names.restore(tensorflow)
    keras_names.restore(tensorflow)
