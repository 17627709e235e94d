"""input_fns over NumPy arrays and pandas frames."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf


def numpy_input_fn(
    x: Any,
    y: Any = None,
    batch_size: int = 128,
    num_epochs: int | None = 1,
    shuffle: bool | None = None,
    queue_capacity: int = 1000,  # noqa: ARG001
    num_threads: int = 1,
) -> Callable[[], Any]:
    """Return an input_fn that yields batches of arrays. It also works in a graph without an Estimator.

    Args:
        x: Array or dict of arrays, all of the same length.
        y: Labels in the same form, or None.
        batch_size: Samples per batch; the last batch may be smaller.
        num_epochs: Passes over the data; None: repeat forever.
        shuffle: True or False: whether each pass has a new random order.
        queue_capacity: Ignored; `shuffle` always chooses among all samples.
        num_threads: As in TensorFlow, each thread makes num_epochs passes. Here one thread makes all of them.

    Returns:
        Function without arguments that returns features, or (features, labels), as tensors. It raises ValueError if
        lengths differ, a dict or x is empty, or x and y share a key; TypeError if x is neither an array nor a dict.

    Raises:
        ValueError: If shuffle is not given.
    """
    _check_shuffle(shuffle)

    def input_fn() -> Any:
        _check_arguments(x, y)
        given = (
            dict(sorted(x.items())) if isinstance(x, dict) else x
        )  # model_fn sees the keys in this order, as in 2.15
        arrays: Any = given if y is None else (given, y)
        flat = tf.nest.flatten(arrays)
        _check_lengths(x, y)
        tensors = _batches(flat, batch_size, num_epochs and num_epochs * num_threads, bool(shuffle))
        return tf.nest.pack_sequence_as(arrays, tensors)

    return input_fn


def _batches(arrays: list[Any], batch_size: int, num_epochs: int | None, is_shuffled: bool) -> list[Any]:
    """Return tensors of the next batch of each array."""
    length = len(arrays[0])
    types = [tf.as_dtype(array.dtype) for array in arrays]

    def chosen(rows: np.ndarray) -> list[np.ndarray]:
        return [array[rows] for array in arrays]

    rows = tf.data.Dataset.range(length)
    if is_shuffled:
        rows = rows.shuffle(max(length, 1))
    batches = rows.repeat(num_epochs).batch(batch_size, drop_remainder=num_epochs is None)
    # A one-shot iterator needs no initializer, so the batches can be read in any session.
    iterator = tf.compat.v1.data.make_one_shot_iterator(batches)
    tensors: list[Any] = tf.numpy_function(chosen, [iterator.get_next()], types)
    for tensor, array in zip(tensors, arrays, strict=True):
        tensor.set_shape([batch_size if num_epochs is None else None, *array.shape[1:]])
    return tensors


def _check_shuffle(shuffle: object) -> None:
    if not isinstance(shuffle, bool):
        raise ValueError(
            "shuffle must be provided and explicitly set as boolean (it is recommended to set it as True for "
            f"training); got {shuffle}"
        )


def _check_arguments(x: Any, y: Any) -> None:
    if not isinstance(x, (dict, np.ndarray)):
        raise TypeError(f"x must be a dict or array; got {type(x).__name__}")
    if isinstance(x, dict) and not x:
        raise ValueError("x cannot be an empty dict")
    if isinstance(x, np.ndarray) and not x.size:
        raise ValueError("x cannot be an empty array")
    if isinstance(y, dict) and not y:
        raise ValueError("y cannot be empty dict, use None instead.")
    if isinstance(x, dict) and isinstance(y, dict) and set(x) & set(y):
        shared = set(x) & set(y)
        raise ValueError(f"{len(shared)} duplicate keys are found in both x and y: {shared}")


def _check_lengths(x: Any, y: Any) -> None:
    if len({len(array) for array in tf.nest.flatten((x, y) if y is not None else x)}) != 1:
        shape_of_x, shape_of_y = (
            tf.nest.map_structure(lambda array: array.shape, given) if given is not None else None for given in (x, y)
        )
        raise ValueError(
            "Length of tensors in x and y is mismatched. All elements in x and y must have the same length.\n"
            f"Shapes in x: {shape_of_x}\nShapes in y: {shape_of_y}\n"
        )


def pandas_input_fn(
    x: Any,
    y: Any = None,
    batch_size: int = 128,
    num_epochs: int | None = 1,
    shuffle: bool | None = None,
    queue_capacity: int | None = 1000,  # noqa: ARG001
    num_threads: int = 1,
    target_column: str = "target",
) -> Callable[[], Any]:
    """Return an input_fn that yields batches of a DataFrame's columns.

    Args:
        x: The DataFrame.
        y: Series or DataFrame of labels with x's index, or None. Its columns may have names of x's columns.
        batch_size: As in numpy_input_fn.
        num_epochs: As in numpy_input_fn.
        shuffle: As in numpy_input_fn.
        queue_capacity: As in numpy_input_fn.
        num_threads: As in numpy_input_fn.
        target_column: A name that is not a column of x. Has no other effect.

    Raises:
        TypeError: If x is not a DataFrame, y has another type, or target_column is not text.
        ValueError: If shuffle is not given, the indexes differ, or x already has the target column.
    """
    _check_shuffle(shuffle)
    if not isinstance(target_column, str):
        raise TypeError("target_column must be a string type")
    if not hasattr(x, "columns") or not hasattr(x, "index"):
        raise TypeError(f"x must be a pandas DataFrame; got {type(x).__name__}")
    if y is not None:
        if not hasattr(y, "index"):
            raise TypeError(f"y must be a pandas Series or DataFrame; got {type(y).__name__}")
        if target_column in x:
            raise ValueError(
                f"Cannot use name {target_column} for target column: DataFrame already has a column with that name: "
                f"{x.columns}"
            )
        if not np.array_equal(x.index, y.index):
            raise ValueError(f"Index for x and y are mismatched.\nIndex for x: {x.index}\nIndex for y: {y.index}\n")
    features = _columns(x)
    labels: Any = _columns(y) if hasattr(y, "columns") else None if y is None else y.to_numpy(copy=True)

    def input_fn() -> Any:
        columns = [*features.values(), *(labels.values() if isinstance(labels, Mapping) else [labels][: y is not None])]
        tensors = _batches(columns, batch_size, num_epochs and num_epochs * num_threads, bool(shuffle))
        batch = dict(zip(features, tensors, strict=False))
        if isinstance(labels, Mapping):
            return batch, dict(zip(labels, tensors[len(features) :], strict=True))
        return batch if y is None else (batch, tensors[-1])

    return input_fn


def _columns(frame: Any) -> dict[Any, np.ndarray]:
    """Return copies of a frame's columns by name."""
    return {name: frame[name].to_numpy(copy=True) for name in frame.columns}
