"""What becomes visible when: after `import cerebras_tensorflow`, after an old Cerebras import, in a script we start.

| called by | what it gives back |
|---|---|
| `names()`: cerebras_tensorflow itself | tf.estimator where TensorFlow has no own; the wheel's names; terminal.py |
| `plain_script()`: roots/autoload, if others import TensorFlow | that; for scripts with Estimators the next too |
| `old_script()`: cerebras_appliance, cerebras, tfwse | that, Keras 2, and old names of it, TensorFlow and protobuf |
| `launched()`: roots/launched/sitecustomize.py | that, and the Python and NumPy names gone since 3.7 |
"""

from __future__ import annotations

import functools
import re
import sys
from itertools import islice
from pathlib import Path
from types import ModuleType

from cerebras_tensorflow import terminal
from cerebras_tensorflow.compat import finder, lazy_keras, python_names, wheel
from cerebras_tensorflow.config import env

_done: set[str] = set()
_ESTIMATOR = re.compile(
    rb"\btf(\.compat\.v1)?\.estimator\b|\btensorflow(\.compat\.v1|\.python)?[._ ](import )?estimator\b"
)
_MAX_MODULES = 50
_MAX_BYTES = 1_000_000


def names() -> None:
    """Let tf.estimator and the modules of the table be found. Imports no TensorFlow."""
    if "names" in _done:
        return
    _done.add("names")
    finder.install()
    lazy_keras.install()
    terminal.set_up()
    finder.FINDER.surround("tensorflow", terminal.quiet_import)
    finder.FINDER.watch("tensorflow", _give_estimator)
    for module, version in _COMPAT_MODULES.items():
        finder.FINDER.watch(module, functools.partial(_give_compat, version=version))


def plain_script() -> None:
    """Set up the names for a script that does not know us; with Keras 2 if the script uses Estimators."""
    names()
    main = getattr(sys.modules.get("__main__"), "__file__", None)
    if main is not None and not finder.tensorflow_has_estimator() and _uses_estimators(Path(main)):
        old_script()


def _uses_estimators(main: Path) -> bool:
    """Whether a script, or a module beside it, names an Estimator: it was then written for Keras 2."""
    modules = [main, *islice(main.parent.glob("*.py"), _MAX_MODULES)]
    for path in modules:
        try:
            text = path.read_bytes()[:_MAX_BYTES]
        except OSError:
            continue
        if _ESTIMATOR.search(text):
            return True
    return False


def old_script() -> None:
    """Give back what scripts of the Cerebras releases need beside: Keras 2, its old names, protobuf's keyword."""
    names()
    if "old_script" in _done:
        return
    _done.add("old_script")
    env.use_keras_2()
    finder.FINDER.watch("tensorflow", _give_keras)
    finder.FINDER.watch("google.protobuf.json_format", python_names.restore_json_format)


def launched() -> None:
    """Give back all of it, also the names of Python and NumPy: for a process that runs one old script."""
    old_script()
    if "launched" in _done:
        return
    _done.add("launched")
    given = python_names.restore_standard_library()
    finder.FINDER.watch("numpy", python_names.restore_numpy)
    finder.FINDER.watch("scipy.sparse", python_names.restore_scipy)
    finder.FINDER.watch("nltk.util", python_names.restore_nltk)
    import logging  # every command of ours imports this module, and only this path logs

    logger = logging.getLogger(__name__)
    logger.info("Names that Python and NumPy no longer have are there for this script: %s.", ", ".join(given))


_COMPAT_MODULES = {
    f"{root}.compat.{path}": path[-2:]
    for root in ("tensorflow", "tensorflow._api.v2")
    for path in ("v1", "v2", "v1.compat.v1", "v1.compat.v2", "v2.compat.v1", "v2.compat.v2")
}
"""Module of tf.compat with an estimator -> version of its API. TensorFlow loads the same files under two names."""


def _give_estimator(tensorflow: ModuleType) -> None:
    if not finder.tensorflow_has_estimator():
        _set(tensorflow, "estimator", finder.import_table_module("tensorflow.estimator"))


def _give_compat(module: ModuleType, version: str) -> None:
    """Give a module of tf.compat its estimator; layers and RNN cells too, which TensorFlow has with Keras 2 only."""
    if finder.tensorflow_has_estimator():
        return
    _set(module, "estimator", finder.import_table_module(f"tensorflow.compat.{version}.estimator"))
    if version == "v1" and not env.is_keras_2():
        _set(module, "layers", finder.LazyModule("tensorflow.compat.v1.layers", wheel.legacy_layers))
        cells = finder.LazyModule("tensorflow.compat.v1.nn.rnn_cell", wheel.legacy_rnn_cells)
        _set(module.nn, "rnn_cell", cells)


def _set(module: ModuleType, name: str, value: ModuleType) -> None:
    """Set an attribute of a module, and of the wrapper with a copy of its attributes that TensorFlow puts before it."""
    for place in (module, sys.modules.get(module.__name__, module)):
        setattr(place, name, value)


def _give_keras(tensorflow: ModuleType) -> None:
    from cerebras_tensorflow.compat import keras_names, tensorflow_names

    tensorflow_names.restore(tensorflow)
    keras_names.restore(tensorflow)
