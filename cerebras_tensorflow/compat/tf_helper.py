"""Helpers for model code: casts and summaries of single tensors, and the weights of a checkpoint."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from cerebras_tensorflow.saver.checkpoint_reader import open_checkpoint

CS_AUTOTUNE: int = tf.data.AUTOTUNE
"""Release 0.8 passes it as num_parallel_calls, cycle_length and num_parallel_reads."""


def boundary_cast(tensor: Any, name: str | None = None, back_cast: bool = True) -> Any:  # noqa: ARG001 - the original's
    """Return the tensor unchanged. The original casts to the wafer's number formats, which do not exist here."""
    return tensor


def summary_layer(tensor: Any) -> Any:
    """Add a summary of a floating-point tensor's norm; return the tensor."""
    summarize_tensor(tensor)
    return tensor


def summarize_tensor(tensor: Any, is_gradient_tensor: bool = False, op_name_if_grad: str | None = None) -> None:
    """Add a scalar summary of a floating-point tensor's norm. Other tensors get none."""
    if not tensor.dtype.is_floating:
        return
    name = op_name_if_grad if is_gradient_tensor and op_name_if_grad else tensor.op.name
    tf.compat.v1.summary.scalar(f"{name}/norm", tf.norm(tf.cast(tensor, tf.float32)))


class GetWeights:
    """The variables of a checkpoint. Iteration gives (name, value), with one value in memory at a time.

    Args:
        path: The checkpoint.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        with open_checkpoint(path) as reader:
            self.var_names: list[str] = list(reader.names())

    def __iter__(self) -> Iterator[tuple[str, np.ndarray]]:
        with open_checkpoint(self._path) as reader:
            for name in self.var_names:
                yield name, reader.read(name)

    def __contains__(self, name: object) -> bool:
        return name in self.var_names

    def __getitem__(self, name: str) -> np.ndarray:
        with open_checkpoint(self._path) as reader:
            return reader.read(name)
