"""Makes the nodes for the uses of a streamed weight: loads, gathers of rows, and its shape as a constant."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from cerebras_tensorflow.compiler.memory.restores import BEFORE_NEXT
from cerebras_tensorflow.compiler.nodes.emission import Emission
from cerebras_tensorflow.compiler.nodes.ops import read_node
from cerebras_tensorflow.compiler.nodes.uses import VariableUses
from cerebras_tensorflow.compiler.slicing.apply_ops import GRADIENT_INPUT
from cerebras_tensorflow.compiler.streaming.plan import StreamPlan
from cerebras_tensorflow.compiler.streaming.schedule import Demand, split_uses
from cerebras_tensorflow.graph.nodes import Endpoint, NodeTable, constant_node
from cerebras_tensorflow.graph.program import (
    GATHER_TOKEN,
    LOAD_TOKEN,
    PRIVATE_LOAD_TOKEN,
    UNCHECKED_LOAD_TOKEN,
    Event,
    Residence,
)
from cerebras_tensorflow.graph.variables import VariableAccess

# Ops that neither pass on nor overwrite an input's buffer. All other ops may: TensorFlow lets an op overwrite an input
# that nothing else refers to, and it does not know that the buffer of a load belongs to the store.
_READERS = frozenset(
    {"MatMul", "BatchMatMul", "BatchMatMulV2", "BatchMatMulV3", "GatherV2", "Conv2D", "Shape", "L2Loss"}
)
_PASS_ON = frozenset({"Identity", "Reshape", "Cast"})

_Member = tuple[VariableAccess, str]  # (read, op that uses the value read)


class LoadNodes:
    """Adds the loads to an emission.

    Args:
        emission: Where the nodes go.
        plan: The decisions about the step.
        demand: All uses of streamed weights.
    """

    def __init__(self, emission: Emission, plan: StreamPlan, demand: Demand) -> None:
        self._emission = emission
        self._demand = demand
        self._window_bytes = plan.window_bytes
        self._residence = plan.residence
        self._regions = plan.regions
        # Weights whose update in slices verifies their checksums in the same step.
        self._checked = {uses.index for cut in plan.applies for uses in plan.family(cut.handles)}

    def add(self, uses: VariableUses) -> None:
        """Add the nodes of one weight."""
        for access in uses.shape_queries:
            self._add_shape(uses, access)
        for access in uses.gathers:
            self._add_gather(uses, access)
        by_branch: dict[tuple[Endpoint, ...], list[_Member]] = {}
        for read, user in uses.value_uses(self._emission.table):
            if user not in self._regions:  # the slices of a region load for themselves
                by_branch.setdefault(read.switches, []).append((read, user))
        for switches, members in by_branch.items():
            for group in self._groups(members):
                self._add_load(uses, switches, group, self._update_near(uses, switches, group))

    def _add_shape(self, uses: VariableUses, access: VariableAccess) -> None:
        out_type = tf.as_dtype(self._emission.table.nodes[access.node].attr["out_type"].type).as_numpy_dtype
        self._emission.drop(access.node)
        self._emission.add(constant_node(access.node, np.array(uses.shape, out_type)))

    def _add_gather(self, uses: VariableUses, access: VariableAccess) -> None:
        """Read only the rows that the batch selects. In host memory the original op does so already."""
        name = access.node
        if self._residence is not Residence.HOST_MEMORY:
            node = self._emission.table.nodes[name]
            ids = self._emission.input(name, self._emission.table.data_inputs(name)[1])
            self._emission.drop(name)
            self._emission.weight_call(name, GATHER_TOKEN, uses, access.switches, [(ids, node.attr["Tindices"].type)])
            for text in node.input:
                if text.startswith("^"):
                    self._emission.wait_for(name, self._emission.control_of(text[1:]))
        position = self._emission.position[name]
        for write in uses.variable.writes:
            self._emission.wait_for(write.node, [self._emission.deadness.alive(name)])
        rows = self._emission.outputs.get(name)
        row_bytes = rows[0].num_bytes if rows and rows[0].shape is not None else 0
        self._emission.record(Event("gather", uses.index, name, 0, position, position, ((name, position),), row_bytes))

    def _groups(self, members: Sequence[_Member]) -> list[list[_Member]]:
        """Split the uses of a weight into those that share a load, in the step's order."""
        position = self._emission.position
        places = sorted({position[user] for _, user in members})
        return [
            [(read, user) for read, user in members if group[0] <= position[user] <= group[-1]]
            for group in split_uses(places, self._demand, self._window_bytes)
        ]

    def _update_near(
        self, uses: VariableUses, switches: tuple[Endpoint, ...], members: Sequence[_Member]
    ) -> str | None:
        """Return the optimizer's op that changes a weight, if it runs soon after the last of some uses. Else None.

        For an update that consists of ops and assigns, it is the last assign.
        """
        emission, writes = self._emission, uses.variable.writes
        if self._residence is not Residence.STORE or switches or len(writes) != 1:
            return None
        write = writes[0].node
        update = self._regions.get(write, write)
        is_known = write in self._regions or emission.table.nodes[write].op in GRADIENT_INPUT
        if not is_known or emission.deadness.branches(write):
            return None
        last = max(emission.position[user] for _, user in members)
        place = emission.position[update]
        if last >= place or self._demand.between(last, place) > self._window_bytes:
            return None
        return update if self._readers_of_buffer(uses, members, is_changed=True) is not None else None

    def _add_load(
        self, uses: VariableUses, switches: tuple[Endpoint, ...], members: Sequence[_Member], update: str | None
    ) -> None:
        """Load a weight for a group of its uses.

        Args:
            uses: All uses of the weight.
            switches: Switches of the branches that the group is in.
            members: The group.
            update: The optimizer op, if it takes this load too.
        """
        first = min(self._emission.position[user] for _, user in members)
        finishers = tuple(sorted({(user, self._end(user)) for _, user in members}, key=lambda finisher: finisher[1]))
        name = members[0][0].node
        if name in self._emission:
            name = f"{name}/cs_load_{first}"
        readers = self._readers_of_buffer(uses, members, update is not None)
        if update is not None:
            finishers = (*finishers, (update, self._end(update)))
        if self._residence is Residence.HOST_MEMORY:
            handle = uses.variable.handle
            source = self._emission.switched(name, handle, tf.resource.as_datatype_enum, switches)
            self._emission.add(read_node(name, source, self._emission.dtype(handle)))
        else:
            self._emission.weight_call(name, self._token(uses, readers), uses, switches, [])
        for read, user in members:
            self._emission.take_load(user, read.node, name)
        if update is not None:
            self._emission.keep_load(uses.variable.handle, name)
        self._emission.record(
            Event("load", uses.index, name, uses.variable.num_bytes, first, finishers[-1][1], finishers)
        )
        for write in uses.variable.writes:
            users = [user for _, user in members if user != write.node] + (readers or [])
            self._emission.wait_for(write.node, [self._emission.deadness.alive(user) for user in dict.fromkeys(users)])

    def _end(self, user: str) -> float:
        """Return the position at which an op, or the last of its slices, has run."""
        position = self._emission.position[user]
        return position + BEFORE_NEXT if user in self._emission.sliced else position

    def _token(self, uses: VariableUses, readers: list[str] | None) -> str:
        if readers is None:
            return PRIVATE_LOAD_TOKEN
        return UNCHECKED_LOAD_TOKEN if uses.index in self._checked else LOAD_TOKEN

    def _readers_of_buffer(
        self, uses: VariableUses, members: Sequence[_Member], is_changed: bool = False
    ) -> list[str] | None:
        """Return the ops to which the uses pass a load's memory on; None if the load needs its own copy.

        A mapped store updates a weight in the memory that its loads refer to. So all readers run before the update.
        The same holds if the update takes the load (is_changed).
        """
        table, position = self._emission.table, self._emission.position
        if not all(_only_reads(table, user, read.node) for read, user in members):
            return None
        if not self._residence.is_in_place and not is_changed:
            return []
        readers = [reader for _, user in members for reader in _readers(table, user) if reader != user]
        first_write = min((position[write.node] for write in uses.variable.writes), default=None)
        if first_write is not None and any(position[reader] > first_write for reader in readers):
            return None
        return readers


def _only_reads(table: NodeTable, user: str, source: str) -> bool:
    """Whether neither an op nor the ops to which it passes its input's buffer overwrite that buffer."""
    node = table.nodes[user]
    if node.op in _READERS:
        return True
    if node.op == "Cast" and node.attr["SrcT"].type != node.attr["DstT"].type:
        return True
    if node.op not in _PASS_ON or table.data_inputs(user)[0].node != source:
        return False
    return all(_only_reads(table, consumer, user) for consumer in table.consumers[user])


def _readers(table: NodeTable, user: str) -> list[str]:
    """Return an op that takes a value, and the ops to which it passes the value's buffer."""
    node = table.nodes[user]
    if node.op not in _PASS_ON or (node.op == "Cast" and node.attr["SrcT"].type != node.attr["DstT"].type):
        return [user]
    return [user, *(reader for consumer in table.consumers[user] for reader in _readers(table, consumer))]
