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
    num_threads: int = 1,  # noqa: ARG001
) -> Callable[[], Any]:
    """Return an input_fn that yields batches of arrays.

    Args:
        x: Array or dict of arrays, all of the same length.
        y: Labels in the same form, or None.
        batch_size: Samples per batch; the last batch may be smaller.
        num_epochs: Passes over the data; None: repeat forever.
        shuffle: True or False: whether each pass has a new random order.
        queue_capacity: Ignored; `shuffle` always chooses among all samples.
        num_threads: Ignored; the arrays are in memory, so one thread is enough.

    Returns:
        Function without arguments that returns features, or (features, labels), as tensors.

    Raises:
        ValueError: If shuffle is not given, lengths differ, a dict is empty, or x and y share a key.
        TypeError: If x is neither an array nor a dict.
    """
    _check_arguments(x, y, shuffle)
    arrays: Any = tf.nest.map_structure(np.asarray, x if y is None else (x, y))
    flat = tf.nest.flatten(arrays)
    lengths = {len(array) for array in flat}
    if len(lengths) != 1:
        shapes = [tf.nest.map_structure(lambda array: array.shape, given) for given in (x, y) if given is not None]
        raise ValueError(
            "Length of tensors in x and y is mismatched. All elements in x and y must have the same length.\n"
            + "".join(f"Shapes in {name}: {shape}\n" for name, shape in zip("xy", shapes, strict=False))
        )
    length = lengths.pop()

    def input_fn() -> Any:
        rows = tf.data.Dataset.range(length)
        if shuffle:
            rows = rows.shuffle(max(length, 1))
        batches = rows.repeat(num_epochs).batch(batch_size)
        iterator = tf.compat.v1.data.make_initializable_iterator(batches)
        tf.compat.v1.add_to_collection(tf.compat.v1.GraphKeys.TABLE_INITIALIZERS, iterator.initializer)
        types = [tf.as_dtype(array.dtype) for array in flat]
        tensors = tf.numpy_function(lambda chosen: [array[chosen] for array in flat], [iterator.get_next()], types)
        for tensor, array in zip(tensors, flat, strict=True):
            tensor.set_shape([None, *array.shape[1:]])
        return tf.nest.pack_sequence_as(arrays, tensors)

    return input_fn


def _check_arguments(x: Any, y: Any, shuffle: object) -> None:
    if not isinstance(shuffle, bool):
        raise ValueError(
            "shuffle must be provided and explicitly set as boolean (it is recommended to set it as True for "
            f"training); got {shuffle}"
        )
    if not isinstance(x, (Mapping, np.ndarray)):
        raise TypeError(f"x must be a dict or array; got {type(x).__name__}")
    if isinstance(x, Mapping) and not x:
        raise ValueError("x cannot be an empty dict")
    if isinstance(y, Mapping) and not y:
        raise ValueError("y cannot be empty dict, use None instead.")
    if isinstance(x, Mapping) and isinstance(y, Mapping) and set(x) & set(y):
        shared = set(x) & set(y)
        raise ValueError(f"{len(shared)} duplicate keys are found in both x and y: {shared}")


def pandas_input_fn(
    x: Any,
    y: Any = None,
    batch_size: int = 128,
    num_epochs: int | None = 1,
    shuffle: bool | None = None,
    queue_capacity: int = 1000,
    num_threads: int = 1,
    target_column: str = "target",
) -> Callable[[], Any]:
    """Return an input_fn that yields batches of a DataFrame's columns.

    Args:
        x: The DataFrame.
        y: Series or DataFrame of labels with x's index, or None.
        batch_size: As in numpy_input_fn.
        num_epochs: As in numpy_input_fn.
        shuffle: As in numpy_input_fn.
        queue_capacity: As in numpy_input_fn.
        num_threads: As in numpy_input_fn.
        target_column: If y is a Series: a name that is not a column of x. Has no other effect.

    Raises:
        TypeError: If x is not a DataFrame, or y has another type.
        ValueError: If the indexes differ, x already has the target column, or for the reasons of numpy_input_fn.
    """
    if not hasattr(x, "columns") or not hasattr(x, "index"):
        raise TypeError(f"x must be a pandas DataFrame; got {type(x).__name__}")
    labels: Any = None
    if y is not None:
        if not hasattr(y, "index"):
            raise TypeError(f"y must be a pandas Series or DataFrame; got {type(y).__name__}")
        if not x.index.equals(y.index):
            raise ValueError(f"Index for x and y are mismatched.\nIndex for x: {x.index}\nIndex for y: {y.index}\n")
        if hasattr(y, "columns"):
            labels = {str(column): y[column].to_numpy() for column in y.columns}
        else:
            if target_column in x:
                raise ValueError(
                    f"Cannot use name {target_column} for target column: DataFrame already has a column with that name:"
                    f" {x.columns}"
                )
            labels = y.to_numpy()
    features = {str(column): x[column].to_numpy() for column in x.columns}
    return numpy_input_fn(features, labels, batch_size, num_epochs, shuffle, queue_capacity, num_threads)
