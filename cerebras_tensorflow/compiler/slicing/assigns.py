"""Updates in slices for optimizers that are written as ops and assigns (AdamW, an average of weights).

Such an optimizer is a region of element-wise ops between the gradient, the old values and the assigns of a weight and
its slots. Each slice of rows gets a copy of the region: loads of its rows, the ops, stores. The results are those of
the whole update, bit for bit, for the reasons that apply_ops.py gives.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from cerebras_tensorflow.compiler.memory.liveness import Use, Value
from cerebras_tensorflow.compiler.memory.recomputing import ELEMENT_WISE
from cerebras_tensorflow.compiler.slicing.apply_ops import slice_bounds
from cerebras_tensorflow.graph.cost import Output
from cerebras_tensorflow.graph.nodes import Endpoint, NodeTable
from cerebras_tensorflow.graph.variables import Variable

# Assigns, and the op that gives the new value from the old one and what is assigned; None: the new value is assigned.
ASSIGNS: dict[str, str | None] = {
    "AssignVariableOp": None,
    "AssignAddVariableOp": "AddV2",
    "AssignSubVariableOp": "Sub",
}
_INNER_OPS = (ELEMENT_WISE - {"BiasAdd"}) | {"Abs", "AddN", "ClipByValue", "Identity", "Sign"}


@dataclass(frozen=True)
class SlicedAssign:
    """How the update of a weight and its slots is cut.

    Attributes:
        writes: The assigns, in the step's order.
        handles: Names of the VarHandleOps they assign to, in the same order.
        inner: Element-wise ops that only the assigns need, in the step's order.
        place: Position of the last assign: where all slices are done.
        bounds: Rows at which slices begin, and the number of rows.
    """

    writes: tuple[str, ...]
    handles: tuple[str, ...]
    inner: tuple[str, ...]
    place: int
    bounds: tuple[int, ...]

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
    """Return the groups of assigns that can be cut, and where.

    Args:
        table: The graph.
        order: All its nodes in the order in which they run.
        streamed: Variables that are streamed, by handle.
        outputs: Of each op.
        kept: Ops whose whole results a run may ask for.
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
        bounds = slice_bounds(shape, max(variable.num_bytes for variable in family), slice_bytes)
        if len(bounds) > 2:
            updates.append(SlicedAssign(writes, tuple(variable.handle for variable in family), inner, place, bounds))
    return updates


def values_between_ops(values: Iterable[Value], cuts: Sequence[SlicedAssign]) -> list[Value]:
    """Return a step's values as they are with the cuts: none inside a region, and all that it takes live to its end."""
    place = {name: cut.place for cut in cuts for name in (*cut.inner, *cut.writes)}
    inner = {name for cut in cuts for name in cut.inner}
    result = []
    for value in values:
        if value.endpoint.node in inner:
            continue
        uses = [Use(place.get(use.user, use.position), use.user, use.endpoint) for use in value.uses]
        result.append(replace(value, uses=tuple(sorted(uses, key=lambda use: use.position))))
    return result


def _regions(
    table: NodeTable,
    order: Sequence[str],
    variables: Mapping[str, Variable],
    outputs: Mapping[str, Sequence[Output]],
    kept: Container[str],
) -> list[list[str]]:
    """Assigns with the element-wise ops that only they need, joined where they share some; in the step's order."""
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
    """Whether all assigns may wait for the last one, stand in the same branch, and nothing reads their results."""
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


def _taken(table: NodeTable, members: Sequence[str]) -> list[tuple[str, Endpoint]]:
    """Pairs (member of a region, what it takes from elsewhere)."""
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
    """Whether a slice can take its part of an input: a variable of the family, a tensor of their shape, a scalar.

    `read` says which streamed variable an op reads. One that is not of the family has no load that slices share.
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
