"""Initial values in slices: draws a large weight a few rows at a time, with the same bits as a whole draw.

A stateless random op of TensorFlow makes its output in groups of a few elements, each group from its own counter
(Philox, Salmon et al. 2011, doi:10.1145/2063384.2063405). To draw the rows from `start` on, the op gets the counter
plus the number of groups before these rows. The ops between the draw and the value are element-wise.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import tensorflow as tf

from cerebras_tensorflow.compiler.memory.recomputing import ELEMENT_WISE
from cerebras_tensorflow.compiler.nodes.store_calls import INT64
from cerebras_tensorflow.graph.nodes import Endpoint, GraphDef, NodeDef, NodeTable, copied, parse_input

_BEGIN_NODE, _SHAPE_NODE = "cs_rows/begin", "cs_rows/shape"  # placeholders for the beginning and shape of a slice
_INNER_OPS = (ELEMENT_WISE - {"BiasAdd"}) | {"Identity"}
_COUNTER_INPUT = 2
# Counters that TensorFlow reserves for each element, because an element may be drawn more than once.
_RESERVED = 256
_RANDOM_OPS = {
    "StatelessRandomUniformV2": False,
    "StatelessRandomNormalV2": False,
    "StatelessTruncatedNormalV2": True,
}
_WORDS = 4  # 32-bit words from one counter
_WIDE = frozenset({tf.float64.as_datatype_enum, tf.int64.as_datatype_enum})


@dataclass(frozen=True)
class Counter:
    """A placeholder for the counter from which a random op draws a slice.

    Attributes:
        node: Its name.
        base: The placeholder of the counter from which the op draws a whole value.
        group: Number of elements that the op makes from one counter.
        step: Difference between the counters of two neighbouring groups.
    """

    node: str
    base: str
    group: int
    step: int

    def value(self, whole: np.ndarray, start: int) -> np.ndarray:
        """Return the counter for the elements from `start` on: shape (2,), uint64.

        Args:
            whole: The counter for a whole value.
            start: Number of elements before the slice, a multiple of `group`.
        """
        number = int(whole[0]) + (int(whole[1]) << 64) + start // self.group * self.step
        return np.array([number & (2**64 - 1), number >> 64 & (2**64 - 1)], np.uint64)


class SlicedInitializers:
    """Initializers, and copies of them that make only some rows. Two placeholders select the rows.

    Args:
        graph_def: The initializers, stateless.

    Attributes:
        graph_def: The initializers and the copies.
        outputs: Name of a value -> name of the tensor with its selected rows.
    """

    def __init__(self, graph_def: GraphDef) -> None:
        self._table = NodeTable(graph_def)
        self.graph_def = GraphDef(versions=graph_def.versions, library=graph_def.library)
        self.graph_def.node.extend(graph_def.node)
        self.outputs: dict[str, str] = {}
        self._counters: dict[str, Counter] = {}
        self._copies: dict[str, str] = {}
        self._add_placeholder(_BEGIN_NODE, INT64)
        self._add_placeholder(_SHAPE_NODE, INT64)

    def add(self, name: str, tensor: str, shape: tuple[int, ...]) -> bool:
        """Copy the initializer of a value, if it can be sliced. Return whether it can.

        Args:
            name: Name of the value.
            tensor: Name of the tensor with the whole value.
            shape: Shape of the value.
        """
        endpoint = parse_input(tensor)
        if not self._is_whole(endpoint, shape):
            return False
        self.outputs[name] = f"{self._copy(endpoint, shape)}:0"
        return True

    def feeds(self, whole: Mapping[str, np.ndarray], start: int, shape: tuple[int, ...]) -> dict[str, np.ndarray]:
        """Return the feeds for a run that makes some rows.

        Args:
            whole: Feeds for a run that makes whole values.
            start: First row.
            shape: Shape of the slice.
        """
        before = start * int(np.prod(shape[1:], dtype=np.int64))
        drawn = {f"{c.node}:0": c.value(whole[f"{c.base}:0"], before) for c in self._counters.values()}
        begin = np.array([start, *[0] * (len(shape) - 1)], np.int64)
        return {**whole, **drawn, f"{_BEGIN_NODE}:0": begin, f"{_SHAPE_NODE}:0": np.array(shape, np.int64)}

    def _is_whole(self, endpoint: Endpoint, shape: tuple[int, ...]) -> bool:
        """Whether an output has the value's shape, and its ops can be sliced."""
        node = self._table.nodes[endpoint.node]
        if any(source.is_control for source in self._table.inputs[endpoint.node]):
            return False
        sources = self._table.data_inputs(endpoint.node)
        if node.op == "Const":
            return _constant_shape(node) == shape
        if node.op in _RANDOM_OPS:
            return self._is_constant(sources[0], shape) and node.attr["dtype"].type != tf.int64.as_datatype_enum
        if node.op == "Fill":
            return self._is_constant(sources[0], shape)
        if node.op not in _INNER_OPS or not sources:
            return False
        scalars = [self._is_scalar(source) for source in sources]
        rest = [source for source, is_scalar in zip(sources, scalars, strict=True) if not is_scalar]
        return bool(rest) and all(self._is_whole(source, shape) for source in rest)

    def _is_scalar(self, endpoint: Endpoint) -> bool:
        node = self._table.nodes[endpoint.node]
        if node.op == "Const":
            return _constant_shape(node) == ()
        sources = self._table.data_inputs(endpoint.node)
        return node.op in _INNER_OPS and bool(sources) and all(self._is_scalar(source) for source in sources)

    def _is_constant(self, endpoint: Endpoint, value: tuple[int, ...]) -> bool:
        node = self._table.nodes[endpoint.node]
        return node.op == "Const" and tuple(tf.make_ndarray(node.attr["value"].tensor).tolist()) == value

    def _copy(self, endpoint: Endpoint, shape: tuple[int, ...]) -> str:
        if endpoint.node in self._copies:
            return self._copies[endpoint.node]
        original = self._table.nodes[endpoint.node]
        sources = self._table.data_inputs(endpoint.node)
        name = f"cs_rows/{endpoint.node}"
        if original.op == "Const":
            copy = NodeDef(name=name, op="Slice", input=[str(endpoint), _BEGIN_NODE, _SHAPE_NODE])
            copy.attr["T"].type, copy.attr["Index"].type = original.attr["dtype"].type, INT64
        else:
            copy = copied(original)
            copy.name = name
            del copy.input[:]
            if original.op == "Fill":
                copy.input.extend([_SHAPE_NODE, str(sources[1])])
                copy.attr["index_type"].type = INT64
            elif original.op in _RANDOM_OPS:
                copy.input.extend([_SHAPE_NODE, str(sources[1]), self._counter(endpoint.node), str(sources[3])])
                copy.attr["Tshape"].type = INT64
            else:
                copy.input.extend(
                    str(source) if self._is_scalar(source) else self._copy(source, shape) for source in sources
                )
        self.graph_def.node.append(copy)
        self._copies[endpoint.node] = name
        return name

    def _counter(self, random: str) -> str:
        """Return the placeholder for the counter of a random op's slice. Ops with equal counters share one."""
        node = self._table.nodes[random]
        base = self._table.data_inputs(random)[_COUNTER_INPUT].node
        group = _WORDS // (2 if node.attr["dtype"].type in _WIDE else 1)
        step = group * _RESERVED // _WORDS if _RANDOM_OPS[node.op] else 1
        name = f"{base}/cs_rows_{group}_{step}"
        if name not in self._counters:
            self._counters[name] = Counter(name, base, group, step)
            self._add_placeholder(name, tf.uint64.as_datatype_enum)
        return name

    def _add_placeholder(self, name: str, dtype: int) -> None:
        node = NodeDef(name=name, op="Placeholder")
        node.attr["dtype"].type = dtype
        self.graph_def.node.append(node)


def _constant_shape(node: NodeDef) -> tuple[int, ...]:
    return tuple(dim.size for dim in node.attr["value"].tensor.tensor_shape.dim)
