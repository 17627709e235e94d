"""Loads Keras 3 on first use instead of with TensorFlow, which takes a third off the CPU time of that import.

As its last act, `import tensorflow` (2.16 to 2.21) imports Keras, which imports pandas and matplotlib if they are
installed. TensorFlow ignores a failure of that import, so the hook makes it fail. `tf.keras` and
`from tensorflow.keras import ...` import Keras themselves. Keras 2 (tf_keras) is not deferred: its optimizers register
with tf.saved_model on import.
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
    """Makes `import keras` fail in TensorFlow's own __init__, and nowhere else."""

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,  # noqa: ARG002 - the signature of a finder
        target: ModuleType | None = None,  # noqa: ARG002
    ) -> None:
        """Find nothing.

        Raises:
            ModuleNotFoundError: If TensorFlow's __init__ imports Keras.
        """
        if fullname != "keras" or _importer(sys._getframe(1)) != "tensorflow":  # noqa: SLF001 - cheaper than inspect
            return
        if not finder.tensorflow_has_estimator():  # a TensorFlow with an estimator has Keras 2
            raise ModuleNotFoundError("keras is loaded on first use", name=fullname)


def _importer(frame: FrameType | None) -> str | None:
    """Return the name of the module that runs an import: the innermost frame outside the import system."""
    while frame is not None:
        name = frame.f_globals.get("__name__")
        if isinstance(name, str) and name.split(".")[0] not in ("importlib", "_frozen_importlib"):
            return name
        frame = frame.f_back
    return None


_DEFERRAL = _Deferral()


def install() -> None:
    """Defer Keras 3 to its first use. No effect if TensorFlow is imported already."""
    if _DEFERRAL not in sys.meta_path:
        sys.meta_path.insert(0, _DEFERRAL)
