"""Rewrites a step's graph for weight streaming: loads, updates and gates replace accesses to variables."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cerebras_tensorflow.compiler.memory.restores import make_restore_nodes
from cerebras_tensorflow.compiler.nodes.emission import Emission
from cerebras_tensorflow.compiler.nodes.ops import barrier_node
from cerebras_tensorflow.compiler.streaming.gates import add_gates
from cerebras_tensorflow.compiler.streaming.load_nodes import LoadNodes
from cerebras_tensorflow.compiler.streaming.plan import StreamPlan
from cerebras_tensorflow.compiler.streaming.schedule import Demand
from cerebras_tensorflow.compiler.streaming.update_nodes import UpdateNodes
from cerebras_tensorflow.graph.nodes import GraphDef
from cerebras_tensorflow.graph.program import Event, Residence

STEP_NODE = "cs_step"


@dataclass(frozen=True)
class Rewritten:
    """A rewritten step.

    Attributes:
        graph_def: Its graph.
        events: The schedule, in order.
        window_bytes: Most bytes of weights that the schedule allows in memory at a time.
        held_curve: Most bytes that moves hold while each original node runs.
        inserted: Original node -> new nodes before it in the order.
    """

    graph_def: GraphDef
    events: tuple[Event, ...]
    window_bytes: int
    held_curve: NDArray[np.int64]
    inserted: Mapping[str, Sequence[str]]


def rewrite(plan: StreamPlan, train_node: str | None, spilled_before: int, roots: Container[str]) -> Rewritten:
    """Return the graph in which weights and values move as planned.

    Args:
        plan: The decisions.
        train_node: Name of the train op; None when nothing is updated.
        spilled_before: Spilled values of the step's other part. They come first in the store.
        roots: Names of all ops that a run may fetch.
    """
    restores = make_restore_nodes(plan.table, plan.outputs, plan.restores, len(plan.uses) + spilled_before, plan.sliced)
    reads = [read.node for uses in plan.uses for read in uses.reads]
    emission = Emission(plan.table, plan.order, plan.outputs, reads, plan.sliced, restores.inputs)
    emission.record(*restores.events)
    if restores.nodes:
        emission.add(*restores.nodes)
    loads = LoadNodes(emission, plan, Demand(_demand(plan, emission)))
    updates = UpdateNodes(emission, plan.residence)
    for uses in plan.uses:
        loads.add(uses)
        updates.update(uses)
    for apply in plan.applies:
        updates.apply_in_slices(apply, plan.family(apply.handles))
    for assign in plan.assigns:
        updates.assign_in_slices(assign, plan.family(assign.handles))
    window_bytes, held = add_gates(emission, plan.window_bytes)
    if train_node:
        emission.add(barrier_node(STEP_NODE, [train_node, *emission.ends]))
    is_on_host = plan.residence is Residence.HOST_MEMORY
    on_host = {uses.variable.handle for uses in plan.uses if is_on_host}
    events = tuple(emission.schedule())
    del loads, updates, restores, reads  # the new graph needs the memory
    return Rewritten(emission.take_graph_def(on_host, roots), events, window_bytes, held, emission.inserted)


def _demand(plan: StreamPlan, emission: Emission) -> Iterator[tuple[int, int]]:
    """Yield (position, bytes) of every use of a streamed weight."""
    for uses in plan.uses:
        size = uses.variable.num_bytes
        for _, user in uses.value_uses(plan.table):
            if user not in plan.regions:
                yield emission.position[user], size
        for write in uses.variable.writes[:1]:
            yield emission.position[write.node], size
