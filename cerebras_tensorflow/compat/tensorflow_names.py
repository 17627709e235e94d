"""Restores names that tensorflow.python.framework.ops had in TensorFlow 2.2 and that have moved since."""

from __future__ import annotations

from types import ModuleType
from typing import Any


def restore(tensorflow: ModuleType) -> None:
    """Restore the names in an imported TensorFlow. Names that it still has stay."""
    from tensorflow.python.framework import ops  # private: old code imports from it

    tf: Any = tensorflow
    moved = {
        "Tensor": tf.Tensor,
        "IndexedSlices": tf.IndexedSlices,
        "convert_to_tensor": tf.convert_to_tensor,
        "convert_to_tensor_or_indexed_slices": tf.compat.v1.convert_to_tensor_or_indexed_slices,
        "register_tensor_conversion_function": tf.register_tensor_conversion_function,
    }
    for name, value in moved.items():
        if not hasattr(ops, name):
            setattr(ops, name, value)
