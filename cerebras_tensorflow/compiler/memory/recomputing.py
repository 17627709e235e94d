"""Recomputation: computes a value again just before its late use, instead of storing and loading it.

This pays if the ops that make the value are element-wise, and if their inputs are in memory at the late use because
they are used there or later. A copy of an op runs the same kernel on the same bits, so it gives the same result.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from cerebras_tensorflow.compiler.memory.liveness import OUTSIDE, Use, Value, owner_of
from cerebras_tensorflow.compiler.memory.spilling import Spill, SpillPlan
from cerebras_tensorflow.graph.cost import Output
from cerebras_tensorflow.graph.nodes import Endpoint, NodeTable

ELEMENT_WISE = frozenset({
    "Add", "AddV2", "BiasAdd", "Cast", "Div", "Equal", "Erf", "Erfc", "Exp", "Greater", "GreaterEqual", "Less",
    "LessEqual", "Log", "LogicalAnd", "LogicalNot", "LogicalOr", "Maximum", "Minimum", "Mul", "Neg", "NotEqual", "Pow",
    "RealDiv", "Reciprocal", "Relu", "Relu6", "Rsqrt", "Select", "SelectV2", "Selu", "Sigmoid", "Softplus", "Sqrt",
    "Square", "SquaredDifference", "Sub", "Tanh",
})  # fmt: skip
_MOST_OPS = 6  # ops that run again for one value, at most
_MOST_EARLIER = 64  # most positions by which a spilled value is loaded early so that another is computed from it


@dataclass(frozen=True)
class Recomputation:
    """One value that is computed again.

    Attributes:
        endpoint: The output.
        ops: The ops to run again, in an order that can be run. The last one makes the value.
        trigger: An op shortly before the late use. The copies wait for it. None: the copies need not wait, since one of
            their inputs is loaded only then.
        late: Uses that take the new value.
        shapes: Shape of each endpoint by which these uses take the value.
    """

    endpoint: Endpoint
    ops: tuple[str, ...]
    trigger: str | None
    late: tuple[Use, ...]
    shapes: Mapping[Endpoint, tuple[int, ...]]


@dataclass(frozen=True)
class Restores:
    """How each value that leaves memory comes back.

    Attributes:
        spills: Values that are loaded from the store, in the order of their first late use.
        recomputations: Values that are computed again.
        first_uses: Spilled value -> position at which it is loaded early, before its own first late use, because
            another value is computed from it.
        curve: Bytes of values between ops at each position of the order.
    """

    spills: tuple[Spill, ...]
    recomputations: tuple[Recomputation, ...]
    first_uses: Mapping[Endpoint, int]
    curve: NDArray[np.int64]


def recompute_where_cheaper(
    table: NodeTable,
    order: Sequence[str],
    values: Sequence[Value],
    plan: SpillPlan,
    outputs: Mapping[str, Sequence[Output]],
    streamed_reads: Container[str],
) -> Restores:
    """Choose which of the values that a plan spills are computed again instead.

    Args:
        table: The graph.
        order: All its nodes in the order in which they run.
        values: Values of the step.
        plan: The values that leave memory, and the memory that the others take.
        outputs: Outputs of each op.
        streamed_reads: Reads of streamed variables, whose values are not in memory.
    """
    search = _Search(table, order, values, plan, outputs, streamed_reads)
    spills, recomputations = [], []
    # In the order in which values are made, so that the inputs of a value are decided before the value.
    for spill in sorted(plan.spills, key=lambda spill: spill.made):
        recomputation = search.find(spill)
        if recomputation is None:
            spills.append(spill)
        else:
            recomputations.append(recomputation)
            search.recomputed.add(spill.endpoint)
    spills.sort(key=lambda spill: spill.late[0].position)
    return Restores(tuple(spills), tuple(recomputations), search.first_uses, search.curve)


@dataclass
class _Attempt:
    """One try to compute a value again at a position: the ops collected so far."""

    place: int
    chain: dict[str, None] = field(default_factory=dict)
    earlier: list[Endpoint] = field(default_factory=list)  # spilled values that must be loaded earlier for it
    is_loaded: bool = False  # whether one of its inputs comes from the store


class _Search:
    """Finds ways to compute spilled values again, and keeps the decisions made so far."""

    def __init__(
        self,
        table: NodeTable,
        order: Sequence[str],
        values: Sequence[Value],
        plan: SpillPlan,
        outputs: Mapping[str, Sequence[Output]],
        streamed_reads: Container[str],
    ) -> None:
        self._table = table
        self._streamed_reads = streamed_reads
        self._outputs = outputs
        self.curve = plan.curve.copy()
        self.first_uses: dict[Endpoint, int] = {}
        self._limit = plan.peak_bytes
        self._position = {name: index for index, name in enumerate(order)}
        self._values = {value.endpoint: value for value in values}
        self._spills = {spill.endpoint: spill for spill in plan.spills}
        self.recomputed: set[Endpoint] = set()

    def find(self, spill: Spill) -> Recomputation | None:
        """Return how to compute a value again; None if that costs too much, or needs a value that is not in memory."""
        place = spill.late[0].position
        attempt = _Attempt(place)
        if not self._add(spill.endpoint, attempt, is_wanted=True):
            return None
        between = sum(self._bytes(name) for name in list(attempt.chain)[:-1])
        if self.curve[place] + between > self._limit:
            return None
        trigger = None if attempt.is_loaded else self._trigger(spill)
        if trigger is None and not attempt.is_loaded:
            return None
        for endpoint in attempt.earlier:
            self.curve[place : self._first_use(endpoint)] += self._spills[endpoint].num_bytes
            self.first_uses[endpoint] = place
        return Recomputation(spill.endpoint, tuple(attempt.chain), trigger, spill.late, spill.shapes)

    def _add(self, endpoint: Endpoint, attempt: _Attempt, is_wanted: bool = False) -> bool:
        """Add the ops that make an endpoint to an attempt's chain. Return whether this is possible."""
        endpoint = owner_of(self._table, endpoint)
        node = self._table.nodes[endpoint.node]
        if node.op == "Const" or endpoint.node in attempt.chain:
            return True
        if node.op == "ReadVariableOp":
            return endpoint.node not in self._streamed_reads
        if not is_wanted and self._is_there(endpoint, attempt):
            return True
        value = self._values.get(endpoint)
        if value is None or value.is_conditional or node.op not in ELEMENT_WISE:
            return False
        if len(self._outputs.get(endpoint.node, ())) != 1 or len(attempt.chain) >= _MOST_OPS:
            return False
        if not all(self._add(source, attempt) for source in self._table.data_inputs(endpoint.node)):
            return False
        attempt.chain[endpoint.node] = None
        return len(attempt.chain) <= _MOST_OPS

    def _is_there(self, endpoint: Endpoint, attempt: _Attempt) -> bool:
        """Whether a value is in memory at the attempt's position, or can be loaded early enough to be."""
        place = attempt.place
        value = self._values.get(endpoint)
        if value is None or value.last < place or endpoint in self.recomputed:
            return False
        spill = self._spills.get(endpoint)
        if spill is None:
            return True
        first = self._first_use(endpoint)
        if first > place and endpoint not in attempt.earlier:
            if first - place > _MOST_EARLIER or (self.curve[place:first] + spill.num_bytes > self._limit).any():
                return False
            attempt.earlier.append(endpoint)
        attempt.is_loaded = True
        return True

    def _first_use(self, endpoint: Endpoint) -> int:
        return self.first_uses.get(endpoint, self._spills[endpoint].late[0].position)

    def _bytes(self, name: str) -> int:
        return sum(output.num_bytes for output in self._outputs.get(name, ()))

    def _trigger(self, spill: Spill) -> str | None:
        """Return the last-running op among the inputs of the first late use, if it runs late enough to be a trigger."""
        first = spill.late[0]
        sources = [owner_of(self._table, endpoint).node for endpoint in self._table.data_inputs(first.user)]
        later = [name for name in sources if self._is_trigger(name, spill.endpoint.node, first.position)]
        return max(later, key=self._position.__getitem__, default=None)

    def _is_trigger(self, name: str, made: str, place: int) -> bool:
        value = self._values.get(Endpoint(name, 0))
        is_late = self._position[name] > place - max(8, (place - self._position[made]) // 4)
        return value is not None and not value.is_conditional and is_late and self._table.nodes[name].op not in OUTSIDE
