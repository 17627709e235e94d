"""Updates in slices for optimizers that are written as ops and assigns (AdamW, an average of weights).

Such an optimizer is a region of element-wise ops. Their inputs are the gradient and the old values; their results go
into the assigns of a weight and its slots. Each slice of rows gets a copy of the region: it loads its rows, runs the
ops, and stores its rows. The results are the same to the last bit, for the reasons given in apply_ops.py.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from cerebras_tensorflow.compiler.memory.liveness import Use, Value
from cerebras_tensorflow.compiler.memory.recomputing import ELEMENT_WISE
from cerebras_tensorflow.compiler.slicing.apply_ops import slice_bounds
from cerebras_tensorflow.compiler.slicing.row_blocks import RowBlocks, find_row_blocks
from cerebras_tensorflow.graph.cost import Output
from cerebras_tensorflow.graph.nodes import Endpoint, NodeTable
from cerebras_tensorflow.graph.variables import Variable

# Assign op -> the op that computes the new value from the old and the assigned value. None: it is the assigned value.
ASSIGNS: dict[str, str | None] = {
    "AssignVariableOp": None,
    "AssignAddVariableOp": "AddV2",
    "AssignSubVariableOp": "Sub",
}
_INNER_OPS = (ELEMENT_WISE - {"BiasAdd"}) | {"Abs", "AddN", "ClipByValue", "Identity", "Sign"}


@dataclass(frozen=True)
class SlicedAssign:
    """An update of a weight and its slots that is done in slices.

    Attributes:
        writes: The assigns, in the step's order.
        handles: Names of the VarHandleOps they assign to, in the same order.
        inner: Element-wise ops that only the assigns need, in the step's order.
        place: Position of the last assign, at which all slices are done.
        bounds: Rows at which slices begin, and the number of rows.
        blocks: Gradients in blocks of the same rows, by the op that joins the blocks.
    """

    writes: tuple[str, ...]
    handles: tuple[str, ...]
    inner: tuple[str, ...]
    place: int
    bounds: tuple[int, ...]
    blocks: Mapping[str, RowBlocks] = field(default_factory=dict)

    @property
    def pairs(self) -> list[tuple[int, int]]:
        """(start, stop) of each slice."""
        return list(zip(self.bounds, self.bounds[1:], strict=False))


def find_assign_slices(
    table: NodeTable,
    order: Sequence[str],
    streamed: Mapping[str, Variable],
    outputs: Mapping[str, Sequence[Output]],
    kept: Container[str],
    slice_bytes: int,
) -> list[SlicedAssign]:
    """Return the groups of assigns that can be done in slices, with the slices.

    Args:
        table: The graph.
        order: All its nodes in the order in which they run.
        streamed: Variables that are streamed, by handle.
        outputs: Of each op.
        kept: Ops whose whole results a run may fetch.
        slice_bytes: Most bytes of one variable in a slice.
    """
    position = {name: index for index, name in enumerate(order)}
    variables = {v.writes[0].node: v for v in streamed.values() if [w.op in ASSIGNS for w in v.writes] == [True]}
    read = {access.node: variable.handle for variable in streamed.values() for access in variable.reads}
    updates = []
    for members in _regions(table, order, variables, outputs, kept):
        writes = tuple(name for name in members if name in variables)
        inner = tuple(name for name in members if name not in variables)
        family = [variables[write] for write in writes]
        place = position[writes[-1]]
        if not inner or not _is_free(table, position, family, writes, place):
            continue
        if not all(_fits(table, endpoint, user, family, read, outputs) for user, endpoint in _taken(table, members)):
            continue
        shape = family[0].shape
        assert shape is not None
        blocks = _blocks_of(table, members, outputs, kept)
        bounds = next((one.bounds for one in blocks.values()), None)
        bounds = bounds or slice_bounds(shape, max(variable.num_bytes for variable in family), slice_bytes)
        if len(bounds) > 2:
            handles = tuple(variable.handle for variable in family)
            updates.append(SlicedAssign(writes, handles, inner, place, bounds, blocks))
    return updates


def values_between_ops(values: Iterable[Value], places: Mapping[str, int], inner: Container[str]) -> list[Value]:
    """Return the values of a step with sliced updates.

    Values that only a sliced update needs exist only in slices, so they are left out. Its inputs live until its last
    slice.

    Args:
        values: Values of the step without slices.
        places: Op that is done in slices -> position at which all its slices are done.
        inner: Those of these ops whose results are left out.
    """
    result = []
    for value in values:
        if value.endpoint.node in inner:
            continue
        uses = [Use(places.get(use.user, use.position), use.user, use.endpoint) for use in value.uses]
        result.append(replace(value, uses=tuple(sorted(uses, key=lambda use: use.position))))
    return result


def _regions(
    table: NodeTable,
    order: Sequence[str],
    variables: Mapping[str, Variable],
    outputs: Mapping[str, Sequence[Output]],
    kept: Container[str],
) -> list[list[str]]:
    """Return the regions, in the step's order.

    A region is an assign with the element-wise ops that only it needs. Assigns that share such ops are in one region.
    """
    shape = {write: variable.shape for write, variable in variables.items()}
    leader = {write: write for write in variables}

    def lead(name: str) -> str:
        while leader[name] != name:
            name = leader[name]
        return name

    for name in reversed(order):
        consumers = table.consumers[name]
        if name in shape or name in kept or not consumers or table.nodes[name].op not in _INNER_OPS:
            continue
        made = outputs.get(name, ())
        if len(made) == 1 and made[0].shape is not None and {shape.get(user) for user in consumers} == {made[0].shape}:
            shape[name] = made[0].shape
            leader[name] = lead(consumers[0])
            for user in consumers[1:]:
                leader[lead(user)] = lead(name)
    regions: dict[str, list[str]] = {}
    for name in order:
        if name in shape:
            regions.setdefault(lead(name), []).append(name)
    return list(regions.values())


def _is_free(
    table: NodeTable, position: Mapping[str, int], family: Sequence[Variable], writes: Sequence[str], place: int
) -> bool:
    """Whether all assigns can wait for the last one, are in the same branch, and nothing reads their results."""
    later = table.descendants(writes)
    if any(position[name] <= place for write in writes for name in table.consumers[write]):
        return False
    branches = [
        [(table.data_inputs(switch.node)[1], switch.port) for switch in variable.writes[0].switches]
        for variable in family
    ]
    if any(variable.shape != family[0].shape for variable in family) or any(each != branches[0] for each in branches):
        return False
    return not any(access.node in later for variable in family for access in variable.reads)


def _blocks_of(
    table: NodeTable, members: Sequence[str], outputs: Mapping[str, Sequence[Output]], kept: Container[str]
) -> dict[str, RowBlocks]:
    """Return the gradients in blocks that only a region takes, by the op that joins the blocks. All have its shape."""
    blocks: dict[str, RowBlocks] = {}
    for _, endpoint in _taken(table, members):
        name = endpoint.node
        if name not in kept and name not in blocks and set(table.consumers[name]) <= set(members):
            found = find_row_blocks(table, name, outputs)
            if found is not None:
                blocks[name] = found
    return blocks


def _taken(table: NodeTable, members: Sequence[str]) -> list[tuple[str, Endpoint]]:
    """Return pairs (member of a region, input that comes from outside the region)."""
    inside = set(members)
    return [
        (user, endpoint)
        for user in members
        for endpoint in table.data_inputs(user)[table.nodes[user].op in ASSIGNS :]
        if endpoint.node not in inside
    ]


def _fits(
    table: NodeTable,
    endpoint: Endpoint,
    user: str,
    family: Sequence[Variable],
    read: Mapping[str, str],
    outputs: Mapping[str, Sequence[Output]],
) -> bool:
    """Whether a slice can take its part of an input: a variable of the family, a tensor of their shape, or a scalar.

    `read` maps a read op to the streamed variable that it reads. A variable outside the family does not fit, because
    slices load only the family's variables.
    """
    if endpoint.node in read:
        is_own = read[endpoint.node] in {variable.handle for variable in family}
        return is_own and table.nodes[user].op not in ASSIGNS
    made = outputs.get(endpoint.node, ())
    shape = made[endpoint.port].shape if endpoint.port < len(made) else None
    if shape is None:
        return False
    expected = family[0].shape
    assert expected is not None
    return shape == expected or (len(shape) <= len(expected) and int(np.prod(shape, dtype=np.int64)) == 1)
