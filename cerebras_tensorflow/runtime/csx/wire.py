"""The bytes that a CSX will send and receive in a step, from the Program."""

from __future__ import annotations

from dataclasses import dataclass

from cerebras_tensorflow.graph.micro_batches import EVERY, Gradient, MicroBatches, sum_dtype
from cerebras_tensorflow.graph.program import Program, dtype_from_name
from cerebras_tensorflow.runtime.micro_batches.share import Share


@dataclass(frozen=True)
class WireBytes:
    """Bytes of one CSX in a step.

    Attributes:
        sent: To all other CSX.
        received: From all other CSX.
    """

    sent: float
    received: float

    def __add__(self, other: WireBytes) -> WireBytes:
        return WireBytes(self.sent + other.sent, self.received + other.received)


def plan_wire(program: Program, rank: int) -> WireBytes:
    """Return the bytes of weights and gradients that a CSX sends and receives in a step.

    It leaves out the batches and scalars. Rows of an embedding count as if no token of a micro-batch repeated, and at
    most once each. So with large embeddings the plan is too high.

    Args:
        program: The Program of a step on several CSX.
        rank: Number of the CSX.
    """
    assert program.micro_batches is not None
    total = _weights(program, program.micro_batches, rank)
    for gradient in program.micro_batches.gradients:
        total += _gradient(program, program.micro_batches, gradient, rank)
    return total


def _weights(program: Program, plan: MicroBatches, rank: int) -> WireBytes:
    """Return the bytes of all passes over the weights: each micro-batch makes the moves of the first part."""
    own = Share.of(plan, rank).size
    sent = received = 0
    for event in program.events:
        if event.first >= plan.num_first or program.is_on_every_csx(event.weight):
            continue
        num_bytes = min(event.weight_bytes, program.stored[event.weight].num_bytes)  # no row moves twice
        if program.owners[event.weight] == rank:
            sent += num_bytes * (plan.count - own)
        else:
            received += num_bytes * own
    return WireBytes(sent, received)


def _gradient(program: Program, plan: MicroBatches, gradient: Gradient, rank: int) -> WireBytes:
    """Return the bytes of one gradient: its sums go to the CSX that adds them, or in ranges to all CSX.

    If all CSX need the mean, it comes back.
    """
    groups = [len(one) for one in Share.of(plan, rank).groups]
    num_bytes = _sum_bytes(program, gradient)
    others = sum(groups) - groups[rank]
    if gradient.adder is not None and gradient.owner == EVERY:
        assert gradient.stored is not None
        total = program.stored[gradient.stored].num_bytes
        if gradient.adder == rank:
            return WireBytes(total * (plan.num_csx - 1), num_bytes * others)
        return WireBytes(num_bytes * groups[rank], total)
    if gradient.owner == rank:
        return WireBytes(0, num_bytes * others)
    if gradient.owner != EVERY:
        return WireBytes(num_bytes * groups[rank], 0)
    if gradient.mark.rows is not None:  # all rows go to all CSX
        return WireBytes(num_bytes * groups[rank] * (plan.num_csx - 1), num_bytes * others)
    part = num_bytes / plan.num_csx
    back = part * (plan.num_csx - 1)
    return WireBytes(part * groups[rank] * (plan.num_csx - 1) + back, part * others + back)


def _sum_bytes(program: Program, gradient: Gradient) -> int:
    """Return the size of one sum of a gradient [B]; 0 if it is unknown."""
    scale = dtype_from_name(sum_dtype(gradient.dtype)).itemsize / dtype_from_name(gradient.dtype).itemsize
    if gradient.stored is not None:
        return int(program.stored[gradient.stored].num_bytes * scale)
    name = gradient.mark.variable
    if gradient.mark.rows is not None:
        index = next((number for number, spec in enumerate(program.streamed) if spec.name == name), None)
        gathers = [event.row_bytes for event in program.events if event.kind == "gather" and event.weight == index]
        whole = program.streamed[index].num_bytes if index is not None else 0
        return int(min(sum(gathers), whole) * scale)  # repeated rows are added before they are sent
    sizes = [spec.num_bytes for spec in (*program.resident, *program.streamed) if spec.name == name]
    return int(sum(sizes) * scale)
