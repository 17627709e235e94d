"""Computes the gradient of a vocabulary in blocks of rows, so that an update in slices never needs it as a whole.

The gradient of such a matrix is a product (its use as weights of the logits), a sum over the rows that the batch names
(its use as embedding), or, with tied embeddings, the sum of both. Each row of these is computed from the same inputs.
Both modes compute the same blocks, so their bits agree: how TensorFlow's product sums up may depend on the number of
rows. Without an update in slices, the blocks are joined.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from itertools import pairwise

import numpy as np
import tensorflow as tf

from cerebras_tensorflow.compiler.memory.recomputing import ELEMENT_WISE
from cerebras_tensorflow.compiler.nodes.ops import slice_nodes
from cerebras_tensorflow.compiler.slicing.apply_ops import GRADIENT_INPUT, slice_bounds
from cerebras_tensorflow.compiler.slicing.row_blocks import block_prefix
from cerebras_tensorflow.graph.bodies import control_inputs, data_inputs
from cerebras_tensorflow.graph.cost import Output
from cerebras_tensorflow.graph.loops import frames_of_nodes
from cerebras_tensorflow.graph.nodes import GraphDef, NodeDef, NodeTable, constant_node, copied

MIN_BYTES, MIN_VOCABULARY_BYTES = 300_000_000, 100_000_000
"""Smallest gradient that is computed in blocks: of any matrix, and of one that is much longer in one dimension."""

BLOCK_BYTES = 16_000_000
"""Size that a block should have. Fixed, because results may depend on it."""

_LONG = 4  # a vocabulary is longer; the weights of feed-forward layers are 4 times as long as wide
_SUMS = frozenset({"AddV2", "Identity"})
_MAKERS = _SUMS | {"MatMul", "UnsortedSegmentSum"}
_USERS = GRADIENT_INPUT.keys() | ELEMENT_WISE | {"Identity"}  # in updates of weights
_INT32 = tf.int32.as_datatype_enum


def compute_in_blocks(
    graph_def: GraphDef, outputs: Mapping[str, Sequence[Output]], kept: Container[str] = ()
) -> tuple[GraphDef, dict[str, Sequence[Output]]]:
    """Return a step in which large gradients are computed in blocks of rows, and the outputs of the new ops.

    Args:
        graph_def: The step. It is not changed.
        outputs: Outputs of each op. If empty, nothing is changed.
        kept: Ops that a run may fetch. They keep their names.
    """
    is_large = {name for name, made in outputs.items() if made and _is_large(made[0])}
    if not any(node.name in is_large and node.op in _MAKERS for node in graph_def.node):
        return graph_def, {}
    table = NodeTable(graph_def)
    frames = frames_of_nodes(table)
    result = GraphDef(versions=graph_def.versions, library=graph_def.library)
    made: dict[str, Sequence[Output]] = {}
    replaced: set[str] = set()
    new: dict[str, list[NodeDef]] = {}
    for name in table.nodes:
        if name in is_large and name not in frames and _is_whole_gradient(table, name, outputs):
            builder = _Builder(table, name, outputs[name][0])
            nodes = builder.build()
            if not any(other in kept for other in builder.replaced - {name}):
                new[name] = nodes
                made |= builder.outputs
                replaced |= builder.replaced
    absent = replaced - new.keys()
    for node in graph_def.node:
        if node.name in new:
            result.node.extend(new[node.name])
        elif node.name not in absent:
            _append_without(result, node, absent)
    return result, made


def _is_large(output: Output) -> bool:
    """Whether a gradient is computed in blocks. Blocks of a square matrix cost more time: they have fewer rows."""
    if output.shape is None or len(output.shape) != 2 or output.num_bytes < MIN_VOCABULARY_BYTES:
        return False
    return output.num_bytes >= MIN_BYTES or max(output.shape) > _LONG * min(output.shape)


def _append_without(graph_def: GraphDef, node: NodeDef, absent: Container[str]) -> None:
    """Append a copy of a node to a graph, without the control edges from ops that it no longer has."""
    copy = graph_def.node.add()
    copy.CopyFrom(node)
    if any(text[1:] in absent for text in control_inputs(node)):
        del copy.input[:]
        copy.input.extend(text for text in node.input if not text.startswith("^") or text[1:] not in absent)


def _is_whole_gradient(table: NodeTable, name: str, outputs: Mapping[str, Sequence[Output]]) -> bool:
    """Whether an op makes a gradient that can be computed in blocks, and only updates of weights take it."""
    users = [user for user in table.consumers[name] if table.nodes[user].op != "NoOp"]
    if not users or not all(table.nodes[user].op in _USERS for user in users):
        return False
    shape = outputs[name][0].shape
    if shape is None or len(slice_bounds(shape, outputs[name][0].num_bytes, BLOCK_BYTES)) < 3:
        return False
    if any(_is_computed_by_rows(table, user, shape, outputs) for user in users):  # it is part of a sum
        return False
    return _is_computed_by_rows(table, name, shape, outputs)


def _is_computed_by_rows(
    table: NodeTable, name: str, shape: tuple[int, ...], outputs: Mapping[str, Sequence[Output]]
) -> bool:
    """Whether each row of an op's result can be computed alone."""
    node = table.nodes[name]
    if not outputs.get(name) or outputs[name][0].shape != shape:
        return False
    if node.op == "MatMul":
        return bool(node.attr["transpose_a"].b)
    if node.op == "UnsortedSegmentSum":
        return True
    return node.op in _SUMS and all(
        _is_only_for(table, source.node, name) and _is_computed_by_rows(table, source.node, shape, outputs)
        for source in table.data_inputs(name)
    )


def _is_only_for(table: NodeTable, name: str, user: str) -> bool:
    """Whether only one op takes the result of an op. Others may wait for it."""
    others = [other for other in table.consumers[name] if other != user]
    return all(table.nodes[other].op == "NoOp" for other in others)


class _Builder:
    """Makes the nodes of one gradient.

    Args:
        table: The step.
        root: The op that makes the gradient.
        output: Its output.

    Attributes:
        outputs: Outputs of the new ops.
        replaced: Original ops that are no longer needed.
    """

    def __init__(self, table: NodeTable, root: str, output: Output) -> None:
        assert output.shape is not None
        self._table = table
        self._root = root
        self._output = output
        self._shape = output.shape
        self._nodes: list[NodeDef] = []
        self.outputs: dict[str, Sequence[Output]] = {}
        self.replaced: set[str] = set()

    def build(self) -> list[NodeDef]:
        """Return the nodes of all blocks, and the one that joins them. It has the name of the gradient."""
        bounds = slice_bounds(self._shape, self._output.num_bytes, BLOCK_BYTES)
        pieces = []
        for start, stop in pairwise(bounds):
            piece = f"{block_prefix(self._root)}{start}"
            self._rows(self._root, piece, start, stop)
            pieces.append(piece)
        axis = f"{self._root}/cs_axis"
        self._nodes.append(constant_node(axis, np.int32(0)))
        whole = self._table.nodes[self._root]
        joined = NodeDef(name=self._root, op="ConcatV2", input=[*pieces, axis], device=whole.device)
        joined.attr["N"].i = len(pieces)
        joined.attr["T"].CopyFrom(whole.attr["T"])
        joined.attr["Tidx"].type = _INT32
        self.outputs[self._root] = [self._output]
        return [*self._nodes, joined]

    def _rows(self, name: str, new: str, start: int, stop: int) -> None:
        """Add the ops that compute some rows of an op's result. The last one is named `new`."""
        self.replaced.add(name)
        node = self._table.nodes[name]
        copy = copied(node)
        copy.name = new
        inputs = data_inputs(node)
        if node.op in _SUMS:
            for number in range(len(inputs)):
                self._rows(self._table.data_inputs(name)[number].node, f"{new}/{number}", start, stop)
                inputs[number] = f"{new}/{number}"
        elif node.op == "MatMul":
            inputs[0] = self._columns(inputs[0], f"{new}/columns", start, stop, node.attr["T"].type)
        else:
            inputs[1:] = self._segments(node, inputs[1], new, start, stop)
        del copy.input[:]
        copy.input.extend([*inputs, *control_inputs(node)])
        self._add(copy, (stop - start, *self._shape[1:]))

    def _columns(self, source: str, name: str, start: int, stop: int, dtype: int) -> str:
        """Return the columns of a product's left side that make some rows of its result."""
        bounds = (f"{name}/from", f"{name}/size")
        self._nodes.extend(slice_nodes(name, source, bounds, [0, start], [-1, stop - start], dtype))
        return name

    def _segments(self, node: NodeDef, indices: str, new: str, start: int, stop: int) -> list[str]:
        """Return indices and number of the segments of some rows. TensorFlow drops negative indices."""
        dtype = node.attr["Tindices"].type
        number = tf.as_dtype(dtype).as_numpy_dtype
        constants = {"from": number(start), "count": number(stop - start), "none": number(-1)}
        for key, value in constants.items():
            self._nodes.append(constant_node(f"{new}/{key}", value))
        ops = (
            ("moved", "Sub", [indices, f"{new}/from"]),
            ("is_inside", "Less", [f"{new}/moved", f"{new}/count"]),
            ("rows", "SelectV2", [f"{new}/is_inside", f"{new}/moved", f"{new}/none"]),
        )
        for key, op, inputs in ops:
            added = NodeDef(name=f"{new}/{key}", op=op, input=inputs, device=node.device)
            added.attr["T"].type = dtype
            self._nodes.append(added)
        count = tf.as_dtype(node.attr["Tnumsegments"].type).as_numpy_dtype(stop - start)
        self._nodes.append(constant_node(f"{new}/num_segments", count))
        return [f"{new}/rows", f"{new}/num_segments"]

    def _add(self, node: NodeDef, shape: tuple[int, ...]) -> None:
        self._nodes.append(node)
        share = shape[0] / self._shape[0]
        self.outputs[node.name] = [Output(self._output.dtype, shape, round(share * self._output.num_bytes))]
