"""Masks in the graph of a training step: of gradients, and of what the optimizer writes.

Each sparse weight has a bool variable `<weight>_mask`, which is saved in checkpoints. In each step, in both modes:

- the gradient becomes `mask ? g : 0` before clipping and the optimizer use it,
- what the optimizer writes to the weight and its slots is masked, unless it is provably zero there (zero_proof.py).

So a masked weight and its slots stay zero to the last bit, with any optimizer. Masks change between two steps, see
training/sparsity/hook.py.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

import tensorflow as tf

from cerebras_tensorflow import tf_private
from cerebras_tensorflow.compiler.slicing.apply_ops import GRADIENT_INPUT
from cerebras_tensorflow.errors import CompileError, SettingsError
from cerebras_tensorflow.estimator.model.partitions import PartKey, checkpoint_key
from cerebras_tensorflow.estimator.model.slots import slots_of
from cerebras_tensorflow.estimator.model.writing_ops import WritingOps
from cerebras_tensorflow.estimator.model.zero_proof import ZeroProof, is_positive, root_handle
from cerebras_tensorflow.sparsity.algorithms import SparsityAlgorithm

v1: Any = tf.compat.v1

MASK_SUFFIX = "_mask"
"""Ending of the name of a weight's mask in checkpoints, as in the published 2.x releases."""
_SCOPE = "cs_sparsity"
_ASSIGNS = frozenset({"AssignVariableOp", "AssignAddVariableOp", "AssignSubVariableOp"})
# These divide by a sum of a slot and the input before the gradient, epsilon.
_EPSILON_DIVIDERS = frozenset(
    {"ResourceApplyAdam", "ResourceApplyAdagradV2", "ResourceApplyRMSProp", "ResourceApplyAdadelta"}
)
# Adagrad divides by the root of its slot, which is zero where the weight is masked.
_ZERO_DIVIDERS = frozenset({"ResourceApplyAdagrad"})


class SparseChoice(Protocol):
    """Says which weights of a model are sparse."""

    def takes(self, name: str, shape: Sequence[int]) -> bool:
        """Whether a weight is sparse."""

    def choose(self, shapes: Mapping[str, tuple[int, ...]]) -> Mapping[str, SparsityAlgorithm | None]:
        """Return weight -> its algorithm; None: the caller's object chooses the masks.

        Raises:
            SettingsError: If no weight is sparse.
        """


@dataclass(frozen=True)
class SparseWeight:
    """A weight with a mask.

    Attributes:
        name: Its name in checkpoints.
        mask: The mask's name in checkpoints.
        shape: Shape of both.
        slots: Names of the variables that belong to the weight and have its shape.
        algorithm: Chooses the mask; None if the caller's object does.
        gradients: Its gradients before the mask: tensors, or IndexedSlices.
        is_trained: Whether the loss depends on it. If not, its mask stays as it starts.
    """

    name: str
    mask: str
    shape: tuple[int, ...]
    slots: tuple[str, ...]
    algorithm: SparsityAlgorithm | None
    gradients: tuple[Any, ...]
    is_trained: bool = True


@dataclass
class _Masked:
    """A weight while its graph is built."""

    variable: Any
    mask: Any
    gradients: list[Any] = field(default_factory=list)
    zero: set[str] = field(default_factory=set)  # names of ops whose result is masked


@dataclass(frozen=True)
class _Late:
    """A variable that is masked after the train op.

    Attributes:
        masked: Its weight.
        variable: The variable: the weight or a slot.
        divisor: The slot by whose root the optimizer divides; None if it does not.
    """

    masked: _Masked
    variable: Any
    divisor: Any = None


class SparseGraph:
    """Adds masks to the graph that model_fn builds.

    Args:
        graph: The graph.
        choice: The weights to make sparse.
    """

    def __init__(self, graph: tf.Graph, choice: SparseChoice) -> None:
        self._graph = graph
        self._choice = choice
        self._writers = WritingOps(graph)
        self._masked: dict[str, _Masked] = {}  # by name of the VarHandleOp
        self._without_gradient: set[str] = set()  # VarHandleOps for which TensorFlow returned None

    @contextmanager
    def masked_gradients(self) -> Iterator[None]:
        """Mask the gradients with respect to sparse weights while model_fn runs."""

        def change(gradients: Any, sources: Any) -> Any:
            if v1.get_default_graph() is not self._graph:
                return gradients
            pairs = zip(tf.nest.flatten(gradients), tf.nest.flatten(sources), strict=True)
            return tf.nest.pack_sequence_as(sources, [self._mask_gradient(*pair) for pair in pairs])

        with tf_private.gradients_passed_through(change):
            yield

    def finish(self, spec: Any) -> tuple[tuple[SparseWeight, ...], Any]:
        """Mask what the train op writes. Return the sparse weights, and the spec with its train op.

        Raises:
            SettingsError: If a filter matches no weight, or the model uses the name of a mask.
            CompileError: If an algorithm needs a gradient that model_fn does not compute where we see it.
        """
        names = {name: variable for variable in _trainable(self._graph) if (name := _name_of(variable)) is not None}
        chosen = self._choice.choose({name: tuple(variable.shape.as_list()) for name, variable in names.items()})
        train_ops = _ancestors(self._graph, spec.train_op)
        slots = slots_of(self._graph, names, train_ops)
        late: list[_Late] = []
        weights = []
        for name, algorithm in chosen.items():
            masked = self._masked_of(names[name])
            needs_gradient = algorithm is not None and algorithm.needs_gradient
            is_trained = bool(masked.gradients) or names[name].handle.op.name not in self._without_gradient
            if needs_gradient and is_trained and not masked.gradients:
                raise CompileError(
                    f"{type(algorithm).__name__} needs the gradient of {name}, but model_fn computes none by "
                    "tf.gradients, an optimizer or tf.GradientTape. Exclude the weight by param_filter, or use set."
                )
            weights.append(
                SparseWeight(
                    name=name,
                    mask=checkpoint_key(masked.mask),
                    shape=tuple(names[name].shape.as_list()),
                    slots=tuple(checkpoint_key(slot) for slot in slots.get(name, ())),
                    algorithm=algorithm,
                    gradients=tuple(masked.gradients) if needs_gradient else (),
                    is_trained=is_trained,
                )
            )
            late += self._mask_writes(masked, slots.get(name, []), train_ops)
        self._check_mask_names()
        return tuple(weights), _with_late_masks(self._graph, spec, late)

    def _mask_gradient(self, gradient: Any, source: Any) -> Any:
        handle = getattr(source, "handle", source)
        if getattr(handle, "dtype", None) != tf.resource:
            return gradient
        root = root_handle(handle).name
        if gradient is None:
            self._without_gradient.add(root)
            return None
        variable: Any = next((one for one in _trainable(self._graph) if one.handle.op.name == root), None)
        name = _name_of(variable) if variable is not None else None
        if name is None or not self._choice.takes(name, tuple(variable.shape.as_list())):
            return gradient
        masked = self._masked_of(variable)
        masked.gradients.append(gradient)
        with tf.name_scope(f"{_SCOPE}/"):
            if isinstance(gradient, tf.IndexedSlices):
                rows = tf.gather(_mask_value(masked), gradient.indices)
                values = tf.where(rows, gradient.values, tf.zeros([], gradient.dtype))
                return tf.IndexedSlices(values, gradient.indices, gradient.dense_shape)
            result = _select(masked, gradient)
        masked.zero.add(result.op.name)
        return result

    def _masked_of(self, variable: Any) -> _Masked:
        """Return the entry of a weight; make its mask if it has none."""
        key = variable.handle.op.name
        if key not in self._masked:
            with tf.init_scope(), v1.name_scope(None):
                mask = v1.Variable(
                    lambda: tf.ones(variable.shape, tf.bool),
                    trainable=False,
                    name=f"{_name_of(variable)}{MASK_SUFFIX}",
                    use_resource=True,
                )
            self._masked[key] = _Masked(variable, mask)
        return self._masked[key]

    def _check_mask_names(self) -> None:
        """Refuse a model that has a name of a mask: TensorFlow would save one of the two under another name."""
        masks = {id(masked.mask) for masked in self._masked.values()}
        own = [checkpoint_key(one) for one in self._graph.get_collection("variables") if id(one) not in masks]
        for masked in self._masked.values():
            weight = _name_of(masked.variable)
            wanted = f"{weight}{MASK_SUFFIX}"
            numbered = re.compile(rf"{re.escape(wanted)}(_\d+)?")  # the later one of two names gets a number
            if checkpoint_key(masked.mask) != wanted or any(numbered.fullmatch(name) for name in own):
                raise SettingsError(
                    f"sparsity: the mask of {weight} needs the name {wanted}, which a variable or op of the model has. "
                    "Rename it, or exclude the weight by param_filter."
                )

    def _mask_writes(self, masked: _Masked, slots: Sequence[Any], train_ops: Sequence[Any]) -> list[_Late]:
        """Mask what the train op writes to a weight and its slots. Return what must be masked after the train op."""
        family = {variable.handle.op.name: variable for variable in (masked.variable, *slots)}
        proof = ZeroProof(masked.variable.shape, masked.zero, family)
        late: dict[str, _Late] = {}
        for op in train_ops:
            handles = [root_handle(tensor).name for tensor in op.inputs if tensor.dtype == tf.resource]
            touched = [handle for handle in handles if handle in family]
            written = touched if touched and self._writers.writes(op) else []
            if not written:
                continue
            if op.type in _ASSIGNS:
                self._mask_input(masked, proof, op, 1)
            elif op.type in GRADIENT_INPUT and op.type not in _ZERO_DIVIDERS and _has_finite_update(op):
                self._mask_input(masked, proof, op, GRADIENT_INPUT[op.type])
            else:
                late |= {handle: _Late(masked, family[handle]) for handle in written}
                if op.type in _ZERO_DIVIDERS and len(written) > 1:
                    late[written[0]] = _Late(masked, masked.variable, family[written[1]])
        return list(late.values())

    def _mask_input(self, masked: _Masked, proof: ZeroProof, op: Any, index: int) -> None:
        value = op.inputs[index]
        if proof.is_zero(value):
            return
        with self._graph.as_default(), tf.name_scope(f"{_SCOPE}/"):
            tf_private.set_input(op, index, _select(masked, value))


def _has_finite_update(op: Any) -> bool:
    """Whether an optimizer's op surely writes a finite value where its gradient and slots are zero."""
    return op.type not in _EPSILON_DIVIDERS or is_positive(op.inputs[GRADIENT_INPUT[op.type] - 1])


def _select(masked: _Masked, value: Any) -> Any:
    """Return mask ? value : 0."""
    if value.shape.rank is None or value.shape != masked.variable.shape:
        value = tf.broadcast_to(value, masked.variable.shape)
    return tf.where(_mask_value(masked), value, tf.zeros([], value.dtype))


def _mask_value(masked: _Masked) -> Any:
    """Return the mask as a tensor.

    The Reshape changes nothing. It keeps the read out of the updates that weight streaming cuts into slices: these
    slices can load their own variables only.
    """
    return tf.reshape(_read(masked.mask), masked.variable.shape)


def _with_late_masks(graph: tf.Graph, spec: Any, late: Sequence[_Late]) -> Any:
    """Return the spec with a train op that masks variables after the optimizer has changed them."""
    if not late:
        return spec
    with graph.as_default(), tf.name_scope(f"{_SCOPE}/"):
        with tf.control_dependencies([_operation(graph, spec.train_op)]):
            values = [_masked_value(one) for one in late]
        with tf.control_dependencies([value.op for value in values]):
            assigns = [
                tf.raw_ops.AssignVariableOp(resource=one.variable.handle, value=value)
                for one, value in zip(late, values, strict=True)
            ]
        return spec._replace(train_op=tf.group(spec.train_op, *assigns, name="train"))


def _masked_value(late: _Late) -> Any:
    """Return the value of a variable after the optimizer, masked."""
    keep = _mask_value(late.masked)
    if late.divisor is not None:  # a weight without any gradient so far: the optimizer has divided zero by zero
        keep = tf.logical_and(keep, _read(late.divisor) > 0)
    return tf.where(keep, _read(late.variable), tf.zeros([], late.variable.dtype.base_dtype))


def _read(variable: Any) -> Any:
    return tf.raw_ops.ReadVariableOp(resource=variable.handle, dtype=variable.dtype.base_dtype)


def _trainable(graph: tf.Graph) -> list[Any]:
    return list(graph.get_collection("trainable_variables"))


def _name_of(variable: Any) -> str | None:
    """Return the name of a variable in checkpoints; None for a part of a partitioned variable."""
    key = checkpoint_key(variable)
    return None if isinstance(key, PartKey) or getattr(variable, "requires_dense", False) else key


def _operation(graph: tf.Graph, value: Any) -> Any:
    element = graph.as_graph_element(value)
    return element if isinstance(element, tf.Operation) else element.op


def _ancestors(graph: tf.Graph, train_op: Any) -> list[Any]:
    """Return the ops that a train op depends on, in the order in which they were made."""
    if train_op is None:
        return []
    seen: dict[str, Any] = {}
    pending = [_operation(graph, train_op)]
    while pending:
        op = pending.pop()
        if op.name not in seen:
            seen[op.name] = op
            pending.extend(tensor.op for tensor in op.inputs)
            pending.extend(op.control_inputs)
    return [op for op in graph.get_operations() if op.name in seen]
