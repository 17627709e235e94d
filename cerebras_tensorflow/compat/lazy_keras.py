"""Keras 3 is loaded when it is used, not with TensorFlow: importing TensorFlow then takes a third less CPU time.

The last thing that `import tensorflow` (2.16 to 2.21) does is to import Keras, pandas and matplotlib with it where they
are installed; it goes on where that fails. `tf.keras` and `from tensorflow.keras import ...` find Keras by themselves.
Keras 2 (tf_keras) is left alone: its optimizers register with tf.saved_model when it is imported.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from types import FrameType, ModuleType
from typing import TYPE_CHECKING

from cerebras_tensorflow.compat import finder

if TYPE_CHECKING:
    from importlib.abc import MetaPathFinder
else:
    MetaPathFinder = object  # as in finder.py


class _Deferral(MetaPathFinder):
    """Refuses Keras to the import statement of TensorFlow's own __init__, and to nobody else."""

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None) -> None:
        """Find nothing.

        Raises:
            ModuleNotFoundError: To TensorFlow's __init__, if it imports Keras ahead of its use.
        """
        if fullname != "keras" or _importer(sys._getframe(1)) != "tensorflow":
            return
        if not finder.tensorflow_has_estimator():  # whose Keras is Keras 2
            raise ModuleNotFoundError("keras is loaded on first use", name=fullname)


def _importer(frame: FrameType | None) -> str | None:
    """Name of the module that an import comes from: the innermost one outside the import system."""
    while frame is not None:
        name = frame.f_globals.get("__name__")
        if isinstance(name, str) and name.split(".")[0] not in ("importlib", "_frozen_importlib"):
            return name
        frame = frame.f_back
    return None


_DEFERRAL = _Deferral()


def install() -> None:
    """Load Keras 3 on first use from now on; without effect where TensorFlow has been imported."""
    if _DEFERRAL not in sys.meta_path:
        sys.meta_path.insert(0, _DEFERRAL)
