"""What becomes visible when: after `import cerebras_tensorflow`, after an old Cerebras import, in a script we start.

| called by | what it gives back |
|---|---|
| `names()`: cerebras_tensorflow itself | tf.estimator where TensorFlow has no own; the wheel's names; terminal.py |
| `old_script()`: cerebras_appliance, cerebras, tfwse | that, Keras 2, and old names of it, TensorFlow and protobuf |
| `launched()`: roots/launched/sitecustomize.py | that, and the Python and NumPy names gone since 3.7 |
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

from cerebras_tensorflow import terminal
from cerebras_tensorflow.compat import finder, lazy_keras, python_names
from cerebras_tensorflow.compat.names import ESTIMATOR_MODULES
from cerebras_tensorflow.config import env

_done: set[str] = set()


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


def _give_estimator(tensorflow: ModuleType) -> None:
    if finder.tensorflow_has_estimator():
        return
    for path in ESTIMATOR_MODULES:
        parts = path.split(".")
        if parts[0] != "tensorflow":
            continue
        parent: Any = tensorflow
        for part in parts[1:-1]:
            parent = getattr(parent, part)
        parent.estimator = finder.import_table_module(path)


def _give_keras(tensorflow: ModuleType) -> None:
    from cerebras_tensorflow.compat import keras_names, tensorflow_names

    tensorflow_names.restore(tensorflow)
    keras_names.restore(tensorflow)
