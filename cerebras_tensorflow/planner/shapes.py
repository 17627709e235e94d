"""The shapes of a batch, as typed by a user whose input does not exist yet."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from cerebras_tensorflow.errors import SettingsError

_FORM = re.compile(r"(?:(?P<name>[\w./-]+)=)?(?P<dtype>[a-z]+\d*)(?::(?P<dims>\d+(?:x\d+)*))?")
_EXAMPLE = "input_ids=int32:8x2048"


@dataclass(frozen=True)
class Shape:
    """One tensor of a batch.

    Attributes:
        name: Key in the features. None: this tensor is all of the features, or all of the labels.
        dtype: TensorFlow's name of the dtype.
        dims: Dimensions; the batch is the first.
    """

    name: str | None
    dtype: str
    dims: tuple[int, ...]


def parse_shape(text: str) -> Shape:
    """Return the tensor that a text describes.

    Raises:
        SettingsError: If the text does not have the form [name=]dtype[:AxBxC].

    >>> parse_shape("input_ids=int32:8x2048")
    Shape(name='input_ids', dtype='int32', dims=(8, 2048))
    >>> parse_shape("float32:16x784").dims
    (16, 784)
    """
    match = _FORM.fullmatch(text)
    if match is None:
        raise SettingsError(f"{text!r} is not a tensor; expected [name=]dtype:dims, such as {_EXAMPLE}")
    dims = tuple(int(dim) for dim in (match["dims"] or "").split("x") if dim)
    return Shape(match["name"], match["dtype"], dims)


class ShapeInputs:
    """Placeholders for a batch, in place of an input pipeline.

    Args:
        features: The features. Several features need names.
        labels: The labels. Empty if model_fn takes none.

    Raises:
        SettingsError: If one of several tensors has no name, or two have the same name.
    """

    def __init__(self, features: Sequence[Shape], labels: Sequence[Shape]) -> None:
        for what, shapes in (("--input", features), ("--labels", labels)):
            names = [shape.name for shape in shapes]
            if len(names) > 1 and (None in names or len(set(names)) < len(names)):
                raise SettingsError(f"each of several {what} needs a different name, such as {_EXAMPLE}")
        if not features:
            raise SettingsError(f"no input is given; describe each tensor of the batch with --input {_EXAMPLE}")
        self._features, self._labels = tuple(features), tuple(labels)
        self._micro_batches = 1

    graph = None
    is_fed = True

    @property
    def batch_size(self) -> int:
        """Samples in a batch."""
        return self._features[0].dims[0] if self._features[0].dims else 1

    @property
    def sizes_of_parts(self) -> list[int]:
        """The sizes of micro-batches, ascending."""
        from cerebras_tensorflow.estimator.model.inputs import divisors

        return divisors(self.batch_size)

    def with_batch_size(self, batch_size: int | None) -> ShapeInputs:
        """Return inputs with another first dim; None: these inputs."""
        if batch_size is None:
            return self

        def resized(shapes: tuple[Shape, ...]) -> list[Shape]:
            return [replace(shape, dims=(batch_size, *shape.dims[1:])) if shape.dims else shape for shape in shapes]

        return ShapeInputs(resized(self._features), resized(self._labels))

    def cut_batches(self, micro_batch_size: int | None) -> None:
        """Let the placeholders take micro-batches of this size; None: whole batches.

        Raises:
            SettingsError: If the batch cannot be cut into parts of this size.
        """
        size = micro_batch_size or self.batch_size
        for dims in (shape.dims for shape in (*self._features, *self._labels) if shape.dims and micro_batch_size):
            if dims[0] != self.batch_size or dims[0] % size:
                raise SettingsError(f"micro_batch_size is {size}, which does not divide the first dim of {dims}")
        self._micro_batches = self.batch_size // size

    def batch(self) -> Any:
        """Make placeholders in the current graph. Return them as BatchInputs."""
        import tensorflow as tf

        from cerebras_tensorflow.estimator.model.inputs import PLACEHOLDER_PREFIX, BatchInputs, shape_of_part

        names: list[str] = []

        def make(shape: Shape) -> Any:
            try:
                dtype = tf.as_dtype(shape.dtype)
            except TypeError as error:
                raise SettingsError(f"{shape.dtype!r} is not a dtype; expected one such as int32 or float32") from error
            names.append(f"{PLACEHOLDER_PREFIX}{len(names)}")
            dims = shape_of_part(tf.TensorShape(shape.dims), self._micro_batches)
            return tf.compat.v1.placeholder(dtype, dims, name=names[-1])

        def structure(shapes: Sequence[Shape]) -> Any:
            if len(shapes) == 1 and shapes[0].name is None:
                return make(shapes[0])
            made: Mapping[str, Any] = {str(shape.name): make(shape) for shape in shapes}
            return made or None

        features, labels, parts = structure(self._features), structure(self._labels), self._micro_batches
        return BatchInputs(features, labels, tuple(names), parts, parts=parts)
