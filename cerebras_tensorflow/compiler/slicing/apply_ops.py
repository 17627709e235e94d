"""Updates in slices: an element-wise optimizer changes a large weight a few rows at a time.

An update then needs the memory of a few slices, whatever the size of the weight. The results are the same to the last
bit: each element's arithmetic is the same, and slices end at whole SIMD packets. So TensorFlow's kernels use vector
code and scalar code for the same elements as in a whole update.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from cerebras_tensorflow.compiler.slicing.row_blocks import RowBlocks, find_row_blocks
from cerebras_tensorflow.graph.cost import Output
from cerebras_tensorflow.graph.nodes import NodeTable
from cerebras_tensorflow.graph.variables import Variable

# Element-wise optimizer ops: how many of their first inputs are variables, and which input is the gradient.
_NUM_VARIABLES = {
    "ResourceApplyGradientDescent": 1,
    "ResourceApplyMomentum": 2,
    "ResourceApplyKerasMomentum": 2,
    "ResourceApplyAdam": 3,
    "ResourceApplyAdagrad": 2,
    "ResourceApplyAdagradV2": 2,
    "ResourceApplyRMSProp": 3,
    "ResourceApplyAdadelta": 3,
}
GRADIENT_INPUT = {
    "ResourceApplyGradientDescent": 2,
    "ResourceApplyMomentum": 3,
    "ResourceApplyKerasMomentum": 3,
    "ResourceApplyAdam": 9,
    "ResourceApplyAdagrad": 3,
    "ResourceApplyAdagradV2": 4,
    "ResourceApplyRMSProp": 7,
    "ResourceApplyAdadelta": 6,
}
# Slices end at multiples of this many elements: a multiple of every SIMD packet size (16 floats with AVX-512).
_PACKET_ELEMENTS = 64


@dataclass(frozen=True)
class SlicedApply:
    """An optimizer op that is done in slices.

    Attributes:
        node: Name of the op.
        handles: Names of the VarHandleOps it updates, in the order of its inputs.
        bounds: Rows at which slices begin, and the number of rows.
        blocks: The gradient in blocks of the same rows; None: it exists as a whole.
    """

    node: str
    handles: tuple[str, ...]
    bounds: tuple[int, ...]
    blocks: RowBlocks | None = None

    @property
    def pairs(self) -> list[tuple[int, int]]:
        """(start, stop) of each slice."""
        return list(zip(self.bounds, self.bounds[1:], strict=False))


def find_slices(
    table: NodeTable,
    streamed: Mapping[str, Variable],
    outputs: Mapping[str, Sequence[Output]],
    kept: Container[str],
    slice_bytes: int,
) -> list[SlicedApply]:
    """Return the optimizer ops of a graph that can be done in slices, with the slices. A small weight has one slice.

    Args:
        table: The graph.
        streamed: Variables that are streamed, by handle.
        outputs: Of each op.
        kept: Ops whose whole results a run may fetch.
        slice_bytes: Most bytes of one variable in a slice.
    """
    updates = []
    for name, node in table.nodes.items():
        if node.op not in GRADIENT_INPUT:
            continue
        touching = {v.handle: v for v in streamed.values() for access in v.accesses if access.node == name}
        handles = [_root(table, endpoint.node) for endpoint in table.data_inputs(name)]
        handles = [handle for handle in handles if handle in touching]
        family = [touching[handle] for handle in handles]
        if family and len(family) == _NUM_VARIABLES[node.op] and all(_is_free(v, name, table) for v in family):
            shape = family[0].shape
            assert shape is not None
            if not shape:  # a scalar has no rows
                continue
            blocks = _blocks_of(table, name, outputs, kept)
            bounds = blocks.bounds if blocks else slice_bounds(shape, family[0].num_bytes, slice_bytes)
            if len({variable.shape for variable in family}) == 1:
                updates.append(SlicedApply(name, tuple(handles), bounds, blocks))
    return updates


def _blocks_of(
    table: NodeTable, name: str, outputs: Mapping[str, Sequence[Output]], kept: Container[str]
) -> RowBlocks | None:
    """Return the blocks of an optimizer op's gradient, if nothing else takes it."""
    gradient = table.data_inputs(name)[GRADIENT_INPUT[table.nodes[name].op]].node
    is_free = table.consumers[gradient] == [name] and gradient not in kept
    return find_row_blocks(table, gradient, outputs) if is_free else None


def _root(table: NodeTable, name: str) -> str:
    while table.nodes[name].op in ("Identity", "Switch"):
        name = table.data_inputs(name)[0].node
    return name


def _is_free(variable: Variable, node: str, table: NodeTable) -> bool:
    """Whether an op is a variable's only write, and nothing reads the result within the step."""
    later = table.descendants([node])
    return [access.node for access in variable.writes] == [node] and not any(
        access.node in later for access in variable.reads
    )


def slice_bounds(shape: tuple[int, ...], num_bytes: int, slice_bytes: int) -> tuple[int, ...]:
    """Return the rows at which slices of a value begin, and its number of rows.

    Args:
        shape: Shape of the value.
        num_bytes: Its size.
        slice_bytes: Size that a slice should have.
    """
    if not shape:
        return (0, 1)
    rows = shape[0]
    row_elements = int(np.prod(shape[1:], dtype=np.int64))
    # The number of slices whose size is closest to slice_bytes: a value a little above it stays whole.
    count = max(1, round(num_bytes / slice_bytes))
    unit = _PACKET_ELEMENTS // int(np.gcd(_PACKET_ELEMENTS, max(1, row_elements)))
    step = max(unit, -(-rows // count) // unit * unit)
    if rows <= step or count == 1 or (rows * row_elements) % _PACKET_ELEMENTS:
        return (0, rows)
    return (*range(0, rows, step), rows)
