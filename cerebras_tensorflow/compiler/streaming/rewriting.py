"""The rewriting of a step's graph for weight streaming: loads, updates, gates in place of reads of variables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import tensorflow as tf

from cerebras_tensorflow.compiler.memory.restores import RestoreNodes
from cerebras_tensorflow.compiler.nodes.emission import Emission, VariableUses
from cerebras_tensorflow.compiler.slicing.apply_ops import SlicedApply
from cerebras_tensorflow.compiler.slicing.assigns import SlicedAssign
from cerebras_tensorflow.compiler.streaming.schedule import Demand, find_waits, split_uses
from cerebras_tensorflow.compiler.streaming.update_nodes import UpdateNodes
from cerebras_tensorflow.graph.cost import Output
from cerebras_tensorflow.graph.nodes import (
    Endpoint,
    GraphDef,
    NodeDef,
    NodeTable,
    constant_node,
    parse_input,
)
from cerebras_tensorflow.graph.program import (
    GATHER_TOKEN,
    LOAD_TOKEN,
    PRIVATE_LOAD_TOKEN,
    UNCHECKED_LOAD_TOKEN,
    Event,
    Residence,
)
from cerebras_tensorflow.graph.variables import VariableAccess

STEP_NODE = "cs_step"

# Ops that never hand on or write over the buffer of an input. Everything else may: TensorFlow reuses the buffer of an
# input that nothing else refers to, and a slice of a weight no longer shows that the memory is the store's.
_READERS = frozenset(
    {"MatMul", "BatchMatMul", "BatchMatMulV2", "BatchMatMulV3", "GatherV2", "Conv2D", "Shape", "L2Loss"}
)
_PASS_ON = frozenset({"Identity", "Reshape", "Cast"})


def _only_reads(table: NodeTable, user: str, source: str) -> bool:
    """Whether an op, and those that it hands its input's buffer on to, never write over it."""
    node = table.nodes[user]
    if node.op in _READERS:
        return True
    if node.op == "Cast" and node.attr["SrcT"].type != node.attr["DstT"].type:
        return True
    if node.op not in _PASS_ON or table.data_inputs(user)[0].node != source:
        return False
    return all(_only_reads(table, consumer, user) for consumer in table.consumers[user])


def _readers(table: NodeTable, user: str) -> list[str]:
    """An op that takes a value, and those that it hands the value's buffer on to."""
    node = table.nodes[user]
    if node.op not in _PASS_ON or (node.op == "Cast" and node.attr["SrcT"].type != node.attr["DstT"].type):
        return [user]
    return [user, *(reader for consumer in table.consumers[user] for reader in _readers(table, consumer))]


class Rewriting:
    """The emission of one program's nodes."""

    def __init__(
        self,
        table: NodeTable,
        order: list[str],
        plans: Sequence[VariableUses],
        window_bytes: int,
        outputs: Mapping[str, Sequence[Output]],
        residence: Residence,
    ) -> None:
        self._emission = Emission(table, order, plans, outputs)
        self._updates = UpdateNodes(self._emission, residence)
        self._window_bytes = window_bytes
        self._residence = residence
        self._checked: set[int] = set()  # weights that their update loads, and so checks
        self._redirect: dict[tuple[str, str], str] = {}  # (user, read) -> load
        self.most_held_bytes = 0

    @property
    def events(self) -> list[Event]:
        """The schedule."""
        return self._emission.events

    @property
    def inserted(self) -> dict[str, list[str]]:
        """Original node -> new ones before it in the order."""
        return self._emission.inserted

    def run(
        self,
        train_node: str | None,
        slices: Mapping[str, SlicedApply],
        assigns: Sequence[SlicedAssign],
        restores: RestoreNodes,
    ) -> None:
        self._emission.sliced = {*slices, *(name for cut in assigns for name in (*cut.inner, *cut.writes))}
        demand = self._demand()
        for plan in self._emission.plans:
            self._emission.dropped_reads.update(read.node for read in plan.before if read.op == "ReadVariableOp")
        self._emission.dropped |= self._emission.dropped_reads
        self._emission.replaced = restores.inputs
        self._emission.events += restores.events
        for node in restores.nodes:
            self._emission.add(node)
        by_handle = {plan.variable.handle: plan for plan in self._emission.plans}
        self._checked = {by_handle[handle].index for cut in slices.values() for handle in cut.handles}
        for plan in self._emission.plans:
            self._shapes(plan)
            self._gathers(plan)
            self._loads(plan, demand)
            if plan.variable.writes and self._residence is Residence.HOST_MEMORY:
                self._updates.update_in_place(plan)
            elif plan.variable.writes and plan.variable.writes[0].node not in self._emission.sliced:
                self._updates.update(plan)
        for cut in slices.values():
            self._updates.sliced_update(cut, [by_handle[handle] for handle in cut.handles])
        for group in assigns:
            self._updates.sliced_assigns(group, [by_handle[handle] for handle in group.handles])
        self._emission.events.sort(key=lambda event: (event.first, event.weight))
        self._gates()
        if train_node:
            self._emission.add(
                NodeDef(
                    name=STEP_NODE, op="NoOp", input=[f"^{train_node}", *(f"^{end}" for end in self._emission.ends)]
                )
            )

    def graph_def(self) -> GraphDef:
        """The rewritten graph, without the nodes that nothing needs any more."""
        source = self._emission.table.graph_def
        on_host = (
            {plan.variable.handle for plan in self._emission.plans}
            if self._residence is Residence.HOST_MEMORY
            else set()
        )
        result = GraphDef(versions=source.versions, library=source.library)
        for node in source.node:
            if node.name in self._emission.dropped:
                continue
            new = NodeDef.FromString(node.SerializeToString())
            del new.input[:]
            if node.name in on_host:
                new.device = "/device:CPU:0"
            control: list[str] = []
            for text in node.input:
                endpoint = parse_input(text)
                load = self._redirect.get((node.name, endpoint.node))
                if endpoint.is_control:
                    control += self._emission.control_of(endpoint.node)
                elif (node.name, endpoint) in self._emission.replaced:
                    new.input.append(self._emission.replaced[(node.name, endpoint)])
                elif load:
                    new.input.append(load)
                    control += self._emission.control_of(endpoint.node)
                else:
                    new.input.append(text)
            control += self._emission.extra_control.get(node.name, ())
            new.input.extend(f"^{name}" for name in dict.fromkeys(control))
            result.node.append(new)
        result.node.extend(self._emission.new.values())
        result.node.extend(self._emission.deadness.new_nodes)
        return result

    def _demand(self) -> Demand:
        """Every use of a streamed weight."""
        demand: list[tuple[int, int]] = []
        for plan in self._emission.plans:
            size = plan.variable.num_bytes
            uses = plan.value_uses(self._emission.table)
            demand += [(self._emission.position[user], size) for _, user in uses if user not in self._emission.sliced]
            demand += [(self._emission.position[write.node], size) for write in plan.variable.writes[:1]]
        return Demand(demand)

    def _shapes(self, plan: VariableUses) -> None:
        for access in [access for access in plan.before + plan.after if access.op == "VariableShape"]:
            out_type = tf.as_dtype(self._emission.table.nodes[access.node].attr["out_type"].type).as_numpy_dtype
            assert plan.variable.shape is not None
            self._emission.dropped.add(access.node)
            self._emission.add(constant_node(access.node, np.array(plan.variable.shape, out_type)))

    def _gathers(self, plan: VariableUses) -> None:
        for access in [access for access in plan.before if access.op == "ResourceGather"]:
            node = self._emission.table.nodes[access.node]
            if self._residence is not Residence.HOST_MEMORY:
                ids = self._emission.input(access.node, self._emission.table.data_inputs(access.node)[1])
                dtype = node.attr["Tindices"].type
                self._emission.dropped.add(access.node)
                call = self._emission.weight_call(access.node, GATHER_TOKEN, plan, access.switches, [(ids, dtype)])
                control = [self._emission.control_of(text[1:]) for text in node.input if text.startswith("^")]
                call.input.extend(f"^{name}" for names in control for name in names)
            position = self._emission.position[access.node]
            for write in plan.variable.writes:
                self._emission.extra_control.setdefault(write.node, []).append(
                    self._emission.deadness.alive(access.node)
                )
            self._emission.events.append(
                Event("gather", plan.index, access.node, 0, position, position, ((access.node, position),))
            )

    def _loads(self, plan: VariableUses, demand: Demand) -> None:
        """Give each group of uses its own load. Reads inside a branch are grouped by branch."""
        by_branch: dict[tuple[Endpoint, ...], list[tuple[VariableAccess, str]]] = {}
        for read, user in plan.value_uses(self._emission.table):
            if user in self._emission.sliced:
                continue
            by_branch.setdefault(read.switches, []).append((read, user))
        for switches, pairs in by_branch.items():
            positions = sorted({self._emission.position[user] for _, user in pairs})
            for group in split_uses(positions, demand, self._window_bytes):
                members = [
                    (read, user) for read, user in pairs if group[0] <= self._emission.position[user] <= group[-1]
                ]
                name = members[0][0].node
                if name in self._emission.new:
                    name = f"{name}/cs_load_{group[0]}"
                readers = self._readers_of_buffer(plan, members)
                if self._residence is Residence.HOST_MEMORY:
                    self._read(name, plan, switches)
                else:
                    shared = UNCHECKED_LOAD_TOKEN if plan.index in self._checked else LOAD_TOKEN
                    self._emission.weight_call(
                        name, PRIVATE_LOAD_TOKEN if readers is None else shared, plan, switches, []
                    )
                for read, user in members:
                    self._redirect[(user, read.node)] = name
                finishers = tuple(
                    sorted({(user, self._emission.position[user]) for _, user in members}, key=lambda f: f[1])
                )
                self._emission.events.append(
                    Event("load", plan.index, name, plan.variable.num_bytes, group[0], group[-1], finishers)
                )
                for write in plan.variable.writes:
                    users = [user for _, user in members if user != write.node]
                    users += readers or []
                    self._emission.extra_control.setdefault(write.node, []).extend(
                        self._emission.deadness.alive(user) for user in dict.fromkeys(users)
                    )

    def _readers_of_buffer(self, plan: VariableUses, members: Sequence[tuple[VariableAccess, str]]) -> list[str] | None:
        """Return the ops beside the uses that read a load's memory; None if the load needs memory of its own.

        A mapped store changes a weight where the loads of it lie, so all of these must come before its update.
        """
        if not all(_only_reads(self._emission.table, user, read.node) for read, user in members):
            return None
        if self._residence is not Residence.MAPPED_FILE:
            return []
        readers = [reader for _, user in members for reader in _readers(self._emission.table, user) if reader != user]
        first_write = min((self._emission.position[write.node] for write in plan.variable.writes), default=None)
        if first_write is not None and any(self._emission.position[reader] > first_write for reader in readers):
            return None
        return readers

    def _read(self, name: str, plan: VariableUses, switches: tuple[Endpoint, ...]) -> None:
        """Load a weight that lies in host memory: read its variable there."""
        handle = self._emission.switched(name, plan.variable.handle, tf.resource.as_datatype_enum, switches)
        node = NodeDef(name=name, op="ReadVariableOp", input=[handle])
        node.attr["dtype"].type = self._emission.table.nodes[plan.variable.handle].attr["dtype"].type
        self._emission.add(node)

    def _gates(self) -> None:
        """Chain the events by gates; each event waits for its gate."""
        waits, self.most_held_bytes = find_waits(self._emission.events, self._window_bytes)
        previous = None
        for number, (event, finishers) in enumerate(zip(self._emission.events, waits, strict=True)):
            if event.kind == "gather":
                continue
            alive = dict.fromkeys(self._emission.deadness.alive(name) for name in finishers)
            if alive or previous is None:
                inputs = [f"^{name}" for name in alive] + ([f"^{previous}"] if previous else [])
                previous = self._emission.add(NodeDef(name=f"cs_gate/{number}", op="NoOp", input=inputs))
            if event.node in self._emission.new:
                self._emission.new[event.node].input.append(f"^{previous}")
            else:
                self._emission.extra_control.setdefault(event.node, []).append(previous)
