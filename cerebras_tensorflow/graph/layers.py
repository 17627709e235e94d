"""Recognises the layers of a step in its TensorFlow graph, named by their scopes, for the model of the wafer.

An op that shows what a layer does is its anchor: a matrix product, a gather from a variable, a reciprocal square root,
a cross-entropy. Every other op belongs to the anchor before or after it, whichever scope is nearer. A gradient op
belongs to the layer of the op whose gradient it computes.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import tensorflow as tf

from cerebras_tensorflow.graph.flops.count import flops_of_ops
from cerebras_tensorflow.graph.scopes import clean_scope, forward_op, is_gradient, layer_of
from cerebras_tensorflow.system.wafer.layers import (
    ATTENTION,
    EMBEDDING,
    LOSS,
    MATRIX_PRODUCT,
    NORM,
    OTHER,
    Layer,
    Network,
)

_PRODUCTS = frozenset(
    (
        "MatMul",
        "BatchMatMul",
        "BatchMatMulV2",
        "BatchMatMulV3",
        "Einsum",
        "Conv2D",
        "Conv3D",
        "DepthwiseConv2dNative",
        "SparseMatMul",
    )
)
_BATCH_PRODUCTS = frozenset(
    (
        "BatchMatMul",
        "BatchMatMulV2",
        "BatchMatMulV3",
        "Einsum",
    )
)
_GATHERS = frozenset(
    (
        "ResourceGather",
        "ResourceGatherNd",
        "GatherV2",
        "GatherNd",
        "Gather",
    )
)
_NORMS = frozenset(
    (
        "Rsqrt",
        "FusedBatchNorm",
        "FusedBatchNormV2",
        "FusedBatchNormV3",
        "LRN",
    )
)
_LOSSES = frozenset(
    (
        "SparseSoftmaxCrossEntropyWithLogits",
        "SoftmaxCrossEntropyWithLogits",
        "SquaredDifference",
        "LogSoftmax",
        "CTCLoss",
    )
)
_VIEWS = frozenset(
    (
        "Identity",
        "Cast",
        "Reshape",
        "Transpose",
        "ReadVariableOp",
        "StopGradient",
        "Mul",
        "Squeeze",
        "ExpandDims",
    )
)
_FREE = frozenset(
    (
        "Const",
        "VarHandleOp",
        "VariableV2",
        "ReadVariableOp",
        "Placeholder",
        "Reshape",
        "Identity",
        "NoOp",
        "Shape",
        "Squeeze",
        "ExpandDims",
    )
)
_DEPTH = 6  # views between a variable and the op that uses it
_UPDATES = ("ResourceApply", "ResourceSparseApply", "ResourceScatter", "Assign")


@dataclass
class _Draft:
    """A layer that is being put together; figures of the whole batch."""

    name: str
    kind: str
    flops: float = 0.0
    forward_flops: float = 0.0
    moved: float = 0.0
    weights: dict[str, Any] = field(default_factory=dict)
    inputs: dict[str, float] = field(default_factory=dict)
    outputs: dict[str, float] = field(default_factory=dict)
    shape: str = ""
    operands: tuple[float, float] = (0.0, 0.0)  # elements that enter and leave its product with a weight


def find_network(
    graph: tf.Graph, names: Iterable[str], batch_size: int, batch_bytes: float, is_training: bool
) -> Network:
    """Return the layers of a step.

    Args:
        graph: The graph that model_fn made.
        names: The ops of the step.
        batch_size: Samples that the graph takes at a time.
        batch_bytes: Their bytes.
        is_training: Whether the step has a backward pass.
    """
    wanted = set(names)
    operations = [operation for operation in graph.get_operations() if operation.name in wanted]
    return _Finder(graph, operations, max(batch_size, 1), is_training).network(batch_bytes / max(batch_size, 1))


class _Finder:
    """One search for layers.

    Args:
        graph: The graph.
        operations: The ops of the step, in the order in which they were made.
        batch_size: Samples that the graph takes at a time.
        is_training: Whether the step has a backward pass.
    """

    def __init__(self, graph: tf.Graph, operations: list[Any], batch_size: int, is_training: bool) -> None:
        self._graph = graph
        self._batch_size = batch_size
        self._is_training = is_training
        first = next((n for n, op in enumerate(operations) if is_training and is_gradient(op.name)), len(operations))
        self._forward = [op for op in operations[:first] if not op.type.startswith(_UPDATES)]
        self._rest = operations[first:]
        self._flops = flops_of_ops(graph, {operation.name for operation in operations})
        self._weight_of: dict[str, Any] = {}
        self._drafts: dict[str, _Draft] = {}
        self._layer_of_op: dict[str, _Draft] = {}

    def network(self, sample_bytes: float) -> Network:
        """Return the layers."""
        self._find_anchors()
        self._assign_forward()
        self._add_backward()
        self._connect()
        trainable = {
            (variable.handle.op if hasattr(variable, "handle") else variable.op).name
            for variable in self._graph.get_collection("trainable_variables")
        }
        seen: set[str] = set()
        layers = [self._layer(draft, trainable, seen) for draft in self._drafts.values()]
        unknown = self._flops.unknown_loops
        return Network(tuple(layers), self._is_training, sample_bytes, self._slots(), unknown_loops=unknown)

    def _weight(self, tensor: Any, depth: int = _DEPTH) -> Any:
        """Return the op of the variable that a tensor is a view of; None if it is none."""
        operation = tensor.op
        known = self._weight_of.get(tensor.name, self)
        if known is not self:
            return known
        found = None
        if operation.type in ("VarHandleOp", "VariableV2"):
            found = operation if tf.as_dtype(operation.get_attr("dtype")).is_floating else None
        elif operation.type in _VIEWS and depth:
            inputs = operation.inputs if operation.type == "Mul" else operation.inputs[:1]
            found = next((weight for value in inputs if (weight := self._weight(value, depth - 1)) is not None), None)
            if operation.type == "Mul" and found is not None and _elements(tensor) != _elements_of(found):
                found = None  # a product of an activation with a weight, such as a norm's scale
        self._weight_of[tensor.name] = found
        return found

    def _kind(self, operation: Any) -> str | None:
        """Return the kind of layer that an op shows, None if it shows none."""
        kind = operation.type
        if kind in _PRODUCTS:
            has_weight = any(self._weight(value) is not None for value in operation.inputs)
            return ATTENTION if kind in _BATCH_PRODUCTS and not has_weight else MATRIX_PRODUCT
        if kind in _GATHERS and self._weight(operation.inputs[0]) is not None:
            return EMBEDDING
        if kind in _NORMS:
            return NORM
        if kind in _LOSSES and "/moments" not in operation.name:  # tf.nn.moments is part of a norm
            return LOSS
        return None

    def _find_anchors(self) -> None:
        """Make a draft for each layer. Anchors of one kind in one scope are one layer, except for products."""
        scopes: dict[str, _Draft] = {}
        for operation in self._forward:
            kind = self._kind(operation)
            if kind is None:
                continue
            scope = clean_scope(operation.name)
            there = scopes.get(scope)
            if there is not None and (kind != MATRIX_PRODUCT or there.kind == NORM) and kind == there.kind:
                self._layer_of_op[operation.name] = there
                continue
            draft = _Draft(self._free_name(scope, operation), kind)
            self._drafts[draft.name] = draft
            self._layer_of_op[operation.name] = draft
            if kind == MATRIX_PRODUCT:
                activations = [value for value in operation.inputs if self._weight(value) is None]
                draft.operands = (max(map(_elements, activations), default=0), _elements(operation.outputs[0]))
            if scope and there is None:
                scopes[scope] = draft

    def _free_name(self, scope: str, operation: Any) -> str:
        """Return a layer's name: its scope, or with the name of its weight or op if the scope has several layers."""
        weight = next((found for value in operation.inputs if (found := self._weight(value)) is not None), None)
        if not scope and weight is not None:
            scope = clean_scope(weight.name)
        if scope and scope not in self._drafts:
            return scope
        last = (weight if weight is not None and not scope else operation).name.split("/")[-1]
        name = f"{scope}/{last}" if scope else last
        number = 1
        while name in self._drafts:
            number += 1
            name = f"{scope}/{last}_{number}" if scope else f"{last}_{number}"
        return name

    def _assign_forward(self) -> None:
        """Give each op to the anchor before or after it, whichever scope is nearer; the one before if both are."""
        anchors = [op for op in self._forward if op.name in self._layer_of_op]
        after = iter([*anchors, None])
        last, following = None, next(after)
        for operation in self._forward:
            if operation is following:
                last, following = operation, next(after)
                draft = self._layer_of_op[operation.name]
            elif last is None and following is None:
                if operation.type in _FREE or not any(_is_float(tensor) for tensor in operation.outputs):
                    continue
                draft = self._drafts.setdefault("input", _Draft("input", OTHER))
            else:
                nearer = _nearer(clean_scope(operation.name), last, following)
                draft = self._layer_of_op[nearer.name]
            self._layer_of_op[operation.name] = draft
            self._count(draft, operation, is_forward=True)

    def _count(self, draft: _Draft, operation: Any, is_forward: bool) -> None:
        flops = self._flops.of_op.get(operation.name, 0)
        draft.flops += flops
        draft.forward_flops += flops if is_forward else 0
        if operation.type not in _FREE:
            sizes = {_elements_of(weight) for weight in draft.weights.values()}
            made = (_elements(tensor) for tensor in operation.outputs if _is_float(tensor))
            draft.moved += 2 * sum(size for size in made if size not in sizes)  # written, and read by the next op
        is_view = operation.type in _VIEWS and any(self._weight(made) is not None for made in operation.outputs)
        if is_forward and not is_view:
            for value in operation.inputs:
                weight = self._weight(value)
                if weight is not None:
                    draft.weights[weight.name] = weight

    def _add_backward(self) -> None:
        rest = 0.0
        for operation in self._rest:
            draft = self._layer_of_op.get(forward_op(operation.name))
            if draft is not None:
                self._count(draft, operation, is_forward=False)
            else:
                rest += self._flops.of_op.get(operation.name, 0)
        if rest:
            self._drafts["other products"] = _Draft("other products", OTHER, flops=rest)

    def _connect(self) -> None:
        """Find the activations that go from one layer to another."""
        for operation in self._forward:
            draft = self._layer_of_op.get(operation.name)
            for tensor in operation.inputs if draft is not None else ():
                source = self._layer_of_op.get(tensor.op.name)
                is_input = tensor.op.type == "Placeholder"
                if source is draft or not (source or is_input) or self._weight(tensor) is not None:
                    continue
                if tensor.op.type == "Const" or not (_is_float(tensor) or is_input):
                    continue
                assert draft is not None
                draft.inputs[tensor.name] = _elements(tensor)
                if source is not None:
                    source.outputs[tensor.name] = _elements(tensor)
                    source.shape = source.shape or _shape(tensor)

    def _slots(self) -> float:
        """Return how many values the optimizer keeps for each trained weight.

        A slot has the shape of its weight, and its name: dense/kernel/Adam, Adam/dense/kernel/m. So masks, statistics
        of batch norm and counters are none.
        """
        trained = {one.op.name: one for one in self._graph.get_collection("trainable_variables")}
        others = [one for one in self._graph.get_collection("variables") if one.op.name not in trained]
        num_weights = sum(one.shape.num_elements() or 0 for one in trained.values() if one.shape.is_fully_defined())
        num_slots = 0
        for variable in others:
            parts = variable.op.name.split("/")
            ranges = itertools.combinations(range(len(parts) + 1), 2)
            owners = [trained.get("/".join(parts[start:stop])) for start, stop in ranges]
            if variable.dtype.base_dtype.is_floating and variable.shape.is_fully_defined():
                is_slot = any(one is not None and one.shape == variable.shape for one in owners)
                num_slots += is_slot * variable.shape.num_elements()
        return round(num_slots / num_weights, 2) if num_weights else 0.0

    def _layer(self, draft: _Draft, trainable: set[str], seen: set[str]) -> Layer:
        count = self._batch_size
        own = [weight for name, weight in draft.weights.items() if name not in seen]
        seen.update(draft.weights)
        num_weights = sum(_elements_of(weight) for weight in draft.weights.values())
        main = max((_elements_of(weight) for weight in draft.weights.values()), default=0)
        rows = draft.forward_flops / (2 * main * count) if main and draft.forward_flops else 1.0
        input_features, output_features = (round(size / (rows * count), 3) for size in draft.operands)
        is_trained = self._is_training
        return Layer(
            name=draft.name,
            kind=draft.kind,
            flops=draft.flops / count,
            forward_flops=draft.forward_flops / count,
            rows=rows,
            input_elements=sum(draft.inputs.values()) / count,
            output_elements=sum(draft.outputs.values()) / count or 1.0,
            moved_elements=draft.moved / count,
            num_weights=num_weights,
            num_own_weights=sum(_elements_of(weight) for weight in own),
            weight_bytes=sum(map(_bytes_of, draft.weights.values())),
            gradient_bytes=sum(_bytes_of(weight) for weight in own if is_trained and weight.name in trainable),
            is_gathered=draft.kind == EMBEDDING,
            input_features=input_features if main else 0.0,
            output_features=output_features if main else 0.0,
            block=layer_of(f"{draft.name}/op"),
            shape=draft.shape,
        )


def _nearer(scope: str, before: Any, after: Any) -> Any:
    """Return the one of two anchors, of which one may be None, whose scope shares more with a scope."""
    if before is None or after is None:
        return after if before is None else before
    scopes = [clean_scope(anchor.name) for anchor in (before, after)]
    if scope == scopes[1]:
        return after
    shared = [_num_shared(scope.split("/"), other.split("/")) for other in scopes]
    return after if shared[1] > shared[0] else before


def _num_shared(here: list[str], there: list[str]) -> int:
    """Return how many scopes two ops share, from the outermost one."""
    return next((n for n, (a, b) in enumerate(zip(here, there, strict=False)) if a != b), min(len(here), len(there)))


def _is_float(tensor: Any) -> bool:
    return bool(tensor.dtype.base_dtype.is_floating)


def _elements(tensor: Any) -> int:
    if tensor.shape.rank is None:
        return 0
    return int(np.prod([dim or 1 for dim in tensor.shape.as_list()], dtype=np.int64))


def _elements_of(weight: Any) -> int:
    shape = weight.get_attr("shape")
    return 0 if shape.unknown_rank else int(np.prod([max(dim.size, 1) for dim in shape.dim], dtype=np.int64))


def _bytes_of(weight: Any) -> int:
    return _elements_of(weight) * int(tf.as_dtype(weight.get_attr("dtype")).size)


def _shape(tensor: Any) -> str:
    return " x ".join("?" if dim is None else str(dim) for dim in tensor.shape.as_list())
