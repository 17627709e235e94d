"""Spilling: under a memory budget, values that wait long for their next use are stored and loaded again.

Activations wait from the forward to the backward pass. Gradients that are clipped by their global norm wait for all
other gradients. At an op where the values exceed the budget, the value with the furthest next use leaves memory first.
Of two with the same next use, the larger one leaves. Belady showed that this rule needs the fewest moves if the whole
order is known (doi:10.1147/sj.52.0078).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from cerebras_tensorflow.compiler.memory.liveness import Use, Value, memory_curve
from cerebras_tensorflow.graph.cost import Output
from cerebras_tensorflow.graph.nodes import Endpoint


@dataclass(frozen=True)
class Spill:
    """One value that leaves memory between two of its uses.

    Attributes:
        endpoint: The output that is stored.
        shape: Shape of that output.
        dtype: Its dtype, by NumPy's name.
        num_bytes: Its size.
        made: Position of the op that makes it.
        late: Uses that take the loaded value, in the step's order.
        shapes: Shape of each endpoint by which late uses take it.
    """

    endpoint: Endpoint
    shape: tuple[int, ...]
    dtype: str
    num_bytes: int
    made: int
    late: tuple[Use, ...]
    shapes: Mapping[Endpoint, tuple[int, ...]]


@dataclass(frozen=True)
class SpillPlan:
    """The values to spill, and the memory that all values then take.

    Attributes:
        spills: In the order of their first late use.
        curve: Bytes of values between ops at each position of the order, after spilling.
        is_least: Whether nothing more can be spilled.
    """

    spills: tuple[Spill, ...]
    curve: NDArray[np.int64]
    is_least: bool = False

    @property
    def peak_bytes(self) -> int:
        """Most bytes of values at a time."""
        return int(self.curve.max(initial=0))

    @property
    def moved_bytes(self) -> int:
        """Bytes that go to the store and back in a step."""
        return 2 * sum(spill.num_bytes for spill in self.spills)


def plan_spills(
    values: Sequence[Value], length: int, outputs: Mapping[str, Sequence[Output]], limit: int | None, min_bytes: int
) -> SpillPlan:
    """Choose what to spill so that the values stay within a limit, or come as close to it as they can.

    Args:
        values: Values of the step.
        length: Number of ops in the step's order.
        outputs: Outputs of each op, for their shapes.
        limit: Most bytes of values at a time. None: nothing is spilled.
        min_bytes: Size of the smallest value to spill.

    Returns:
        The plan. Its peak_bytes is above the limit if the limit cannot be reached.
    """
    curve = memory_curve(values, length)
    if limit is None or not length:
        return SpillPlan((), curve)
    gaps = [gap for value in values for gap in _gaps(value, outputs, min_bytes)]
    begin = np.array([gap.begin for gap in gaps], np.int64)
    end = np.array([gap.end for gap in gaps], np.int64)
    size = np.array([gap.value.num_bytes for gap in gaps], np.int64)
    free = np.ones(len(gaps), np.bool_)
    chosen: list[_Gap] = []
    covering = _covering(begin, end, length)  # free gaps over each position
    high = np.where(covering > 0, curve, -1)  # the curve where something can still be spilled
    while high[worst := int(high.argmax())] > limit:
        best = _furthest(free & (begin < worst) & (worst < end), end, size)
        free[best] = False
        chosen.append(gaps[best])
        inside = slice(begin[best] + 1, end[best])
        curve[inside] -= size[best]
        covering[inside] -= 1
        high[inside] = np.where(covering[inside] > 0, curve[inside], -1)
    chosen.sort(key=lambda gap: gap.end)
    return SpillPlan(tuple(_spill(gap, outputs) for gap in chosen), curve)


@dataclass(frozen=True)
class _Gap:
    """A wait of a value: no op uses it after position `begin` and before position `end`."""

    value: Value
    begin: int
    end: int


def _gaps(value: Value, outputs: Mapping[str, Sequence[Output]], min_bytes: int) -> list[_Gap]:
    """Return the longest wait of a value as a list of one gap; an empty list if the value cannot be spilled."""
    if value.is_conditional or value.num_bytes < min_bytes:
        return []
    if any(_output(endpoint, outputs) is None for endpoint in (value.endpoint, *(u.endpoint for u in value.uses))):
        return []
    places = [value.made, *(use.position for use in value.uses)]
    width, begin, end = max((after - before, before, after) for before, after in pairwise(places))
    return [_Gap(value, begin, end)] if width > 2 else []


def _output(endpoint: Endpoint, outputs: Mapping[str, Sequence[Output]]) -> Output | None:
    """Return an endpoint's output if its shape is known."""
    made = outputs.get(endpoint.node, ())
    output = made[endpoint.port] if endpoint.port < len(made) else None
    return output if output is not None and output.shape is not None else None


def _covering(begin: NDArray[np.int64], end: NDArray[np.int64], length: int) -> NDArray[np.int64]:
    """Return how many gaps have each position between their two ends."""
    change = np.zeros(length + 1, np.int64)
    np.add.at(change, begin + 1, 1)
    np.add.at(change, end, -1)
    return np.cumsum(change)[:length]


def _furthest(fits: NDArray[np.bool_], end: NDArray[np.int64], size: NDArray[np.int64]) -> int:
    candidates = np.flatnonzero(fits)
    return int(candidates[np.lexsort((size[candidates], end[candidates]))[-1]])


def _spill(gap: _Gap, outputs: Mapping[str, Sequence[Output]]) -> Spill:
    late = tuple(use for use in gap.value.uses if use.position >= gap.end)
    shapes: dict[Endpoint, tuple[int, ...]] = {}
    for endpoint in (gap.value.endpoint, *(use.endpoint for use in late)):
        output = _output(endpoint, outputs)
        assert output is not None
        assert output.shape is not None
        shapes[endpoint] = output.shape
    made = _output(gap.value.endpoint, outputs)
    assert made is not None
    assert made.shape is not None
    return Spill(gap.value.endpoint, made.shape, made.dtype, gap.value.num_bytes, gap.value.made, late, shapes)
