"""The rewriting of a step's graph for weight streaming: loads, updates, gates in place of reads of variables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import tensorflow as tf

from cerebras_tensorflow.compiler.refills import RefillNodes
from cerebras_tensorflow.compiler.schedule import Demand, find_waits, split_uses
from cerebras_tensorflow.compiler.slice_copy import Graph, SliceCopy
from cerebras_tensorflow.compiler.sliced_assigns import AssignSlices
from cerebras_tensorflow.compiler.sliced_update import GRADIENT_INPUT, Slices
from cerebras_tensorflow.compiler.store_calls import INT64, call_node, index_node
from cerebras_tensorflow.graph.conditionals import Liveness
from cerebras_tensorflow.graph.cost import Output
from cerebras_tensorflow.graph.nodes import (
    Endpoint,
    GraphDef,
    NodeDef,
    NodeTable,
    constant_node,
    parse_input,
)
from cerebras_tensorflow.graph.ordering import first_reads
from cerebras_tensorflow.graph.program import (
    GATHER_TOKEN,
    LEND_TOKEN,
    LOAD_TOKEN,
    PRIVATE_LOAD_TOKEN,
    SLICE_LOAD_TOKEN,
    SLICE_STORE_TOKEN,
    STORE_TOKEN,
    UNCHECKED_LOAD_TOKEN,
    Event,
)
from cerebras_tensorflow.graph.variables import REPLACING_OPS, Touch, Variable

STEP_NODE = "cs_step"

# Ops that never hand on or write over the buffer of an input. Everything else may: TensorFlow reuses the buffer of an
# input that nothing else refers to, and a slice of a weight no longer shows that the memory is the store's.
_READERS = frozenset(
    {"MatMul", "BatchMatMul", "BatchMatMulV2", "BatchMatMulV3", "GatherV2", "Conv2D", "Shape", "L2Loss"}
)
_PASS_ON = frozenset({"Identity", "Reshape", "Cast"})
# Slices of an update made of assigns that are in memory at a time: one that is loaded, one that is worked on.
_SLICES_AT_A_TIME = 2


@dataclass
class Plan:
    """The uses of one streamed variable."""

    index: int
    variable: Variable
    before: list[Touch] = field(default_factory=list)  # reads of the value that the step starts with
    after: list[Touch] = field(default_factory=list)  # reads of the updated value

    @classmethod
    def of(cls, index: int, variable: Variable, table: NodeTable) -> Plan:
        before, after = first_reads(table, variable)
        return cls(index, variable, before, after)

    def value_uses(self, table: NodeTable) -> list[tuple[Touch, str]]:
        """Pairs (read, op that uses the value read)."""
        return [
            (read, user)
            for read in self.before
            if read.op == "ReadVariableOp"
            for user in table.consumers[read.node]
            if any(endpoint.node == read.node for endpoint in table.data_inputs(user))
        ]


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
        plans: Sequence[Plan],
        window_bytes: int,
        outputs: Mapping[str, Sequence[Output]],
        is_in_host_memory: bool = False,
        is_store_mapped: bool = False,
    ) -> None:
        self._table = table
        self._position = {name: position for position, name in enumerate(order)}
        self._plans = plans
        self._window_bytes = window_bytes
        self._outputs = outputs
        self._is_in_host_memory = is_in_host_memory
        self._is_store_mapped = is_store_mapped
        self._checked: set[int] = set()  # weights that their update loads, and so checks
        self._liveness = Liveness(table, order)
        self._dropped: set[str] = set()  # original nodes that are replaced
        self._redirect: dict[tuple[str, str], str] = {}  # (user, read) -> load
        self._refill: dict[tuple[str, Endpoint], str] = {}  # (user, value) -> what it takes instead
        self._extra_control: dict[str, list[str]] = {}
        self._new: dict[str, NodeDef] = {}
        self._ends: list[str] = []  # what the step waits for
        self._dropped_reads: set[str] = set()
        self._sliced: set[str] = set()  # ops and assigns that are done in slices
        self.events: list[Event] = []
        self.most_held_bytes = 0
        self.inserted: dict[str, list[str]] = {}  # original node -> new ones before it in the order

    def run(
        self,
        train_node: str | None,
        slices: Mapping[str, Slices],
        assigns: Sequence[AssignSlices],
        refills: RefillNodes,
    ) -> None:
        self._sliced = {*slices, *(name for cut in assigns for name in (*cut.inner, *cut.writes))}
        demand = self._demand()
        for plan in self._plans:
            self._dropped_reads.update(read.node for read in plan.before if read.op == "ReadVariableOp")
        self._dropped |= self._dropped_reads
        self._refill = refills.inputs
        self.events += refills.events
        for node in refills.nodes:
            self._add(node)
        by_handle = {plan.variable.handle: plan for plan in self._plans}
        self._checked = {by_handle[handle].index for cut in slices.values() for handle in cut.handles}
        for plan in self._plans:
            self._shapes(plan)
            self._gathers(plan)
            self._loads(plan, demand)
            if plan.variable.writes and self._is_in_host_memory:
                self._update_in_place(plan)
            elif plan.variable.writes and plan.variable.writes[0].node not in self._sliced:
                self._update(plan)
        for cut in slices.values():
            self._sliced_update(cut, [by_handle[handle] for handle in cut.handles])
        for group in assigns:
            self._sliced_assigns(group, [by_handle[handle] for handle in group.handles])
        self.events.sort(key=lambda event: (event.first, event.weight))
        self._gates()
        if train_node:
            self._add(NodeDef(name=STEP_NODE, op="NoOp", input=[f"^{train_node}", *(f"^{end}" for end in self._ends)]))

    def graph_def(self) -> GraphDef:
        """The rewritten graph, without the nodes that nothing needs any more."""
        source = self._table.graph_def
        on_host = {plan.variable.handle for plan in self._plans} if self._is_in_host_memory else set()
        result = GraphDef(versions=source.versions, library=source.library)
        for node in source.node:
            if node.name in self._dropped:
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
                    control += self._control_of(endpoint.node)
                elif (node.name, endpoint) in self._refill:
                    new.input.append(self._refill[(node.name, endpoint)])
                elif load:
                    new.input.append(load)
                    control += self._control_of(endpoint.node)
                else:
                    new.input.append(text)
            control += self._extra_control.get(node.name, ())
            new.input.extend(f"^{name}" for name in dict.fromkeys(control))
            result.node.append(new)
        result.node.extend(self._new.values())
        result.node.extend(self._liveness.new_nodes)
        return result

    def _control_of(self, name: str) -> list[str]:
        """What a node waits for that had a control edge from a node, or took a read's value.

        Of a read that is replaced, that is what the read itself waited for: its value is loaded whenever it fits.
        What the read had to precede waits for the uses of its value already.
        """
        if name not in self._dropped or self._table.nodes[name].op != "ReadVariableOp":
            return [name]
        before = [endpoint.node for endpoint in self._table.inputs[name] if endpoint.is_control]
        return [control for node in before for control in self._control_of(node)]

    def _add(self, node: NodeDef) -> str:
        self._new[node.name] = node
        return node.name

    def _demand(self) -> Demand:
        """Every use of a streamed weight."""
        demand: list[tuple[int, int]] = []
        for plan in self._plans:
            size = plan.variable.num_bytes
            uses = plan.value_uses(self._table)
            demand += [(self._position[user], size) for _, user in uses if user not in self._sliced]
            demand += [(self._position[write.node], size) for write in plan.variable.writes[:1]]
        return Demand(demand)

    def _shapes(self, plan: Plan) -> None:
        for touch in [t for t in plan.before + plan.after if t.op == "VariableShape"]:
            out_type = tf.as_dtype(self._table.nodes[touch.node].attr["out_type"].type).as_numpy_dtype
            assert plan.variable.shape is not None
            self._dropped.add(touch.node)
            self._add(constant_node(touch.node, np.array(plan.variable.shape, out_type)))

    def _gathers(self, plan: Plan) -> None:
        for touch in [t for t in plan.before if t.op == "ResourceGather"]:
            node = self._table.nodes[touch.node]
            if not self._is_in_host_memory:
                ids = self._input(touch.node, self._table.data_inputs(touch.node)[1])
                dtype = node.attr["Tindices"].type
                self._dropped.add(touch.node)
                call = self._weight_call(touch.node, GATHER_TOKEN, plan, touch.switches, [(ids, dtype)])
                control = [self._control_of(text[1:]) for text in node.input if text.startswith("^")]
                call.input.extend(f"^{name}" for names in control for name in names)
            position = self._position[touch.node]
            for write in plan.variable.writes:
                self._extra_control.setdefault(write.node, []).append(self._liveness.alive(touch.node))
            self.events.append(
                Event("gather", plan.index, touch.node, 0, position, position, ((touch.node, position),))
            )

    def _loads(self, plan: Plan, demand: Demand) -> None:
        """Give each group of uses its own load. Reads inside a branch are grouped by branch."""
        by_branch: dict[tuple[Endpoint, ...], list[tuple[Touch, str]]] = {}
        for read, user in plan.value_uses(self._table):
            if user in self._sliced:
                continue
            by_branch.setdefault(read.switches, []).append((read, user))
        for switches, pairs in by_branch.items():
            positions = sorted({self._position[user] for _, user in pairs})
            for group in split_uses(positions, demand, self._window_bytes):
                members = [(read, user) for read, user in pairs if group[0] <= self._position[user] <= group[-1]]
                name = members[0][0].node
                if name in self._new:
                    name = f"{name}/cs_load_{group[0]}"
                readers = self._readers_of_buffer(plan, members)
                if self._is_in_host_memory:
                    self._read(name, plan, switches)
                else:
                    shared = UNCHECKED_LOAD_TOKEN if plan.index in self._checked else LOAD_TOKEN
                    self._weight_call(name, PRIVATE_LOAD_TOKEN if readers is None else shared, plan, switches, [])
                for read, user in members:
                    self._redirect[(user, read.node)] = name
                finishers = tuple(sorted({(user, self._position[user]) for _, user in members}, key=lambda f: f[1]))
                self.events.append(
                    Event("load", plan.index, name, plan.variable.num_bytes, group[0], group[-1], finishers)
                )
                for write in plan.variable.writes:
                    users = [user for _, user in members if user != write.node]
                    users += readers or []
                    self._extra_control.setdefault(write.node, []).extend(
                        self._liveness.alive(user) for user in dict.fromkeys(users)
                    )

    def _readers_of_buffer(self, plan: Plan, members: Sequence[tuple[Touch, str]]) -> list[str] | None:
        """Return the ops beside the uses that read a load's memory; None if the load needs memory of its own.

        A mapped store changes a weight where the loads of it lie, so all of these must come before its update.
        """
        if not all(_only_reads(self._table, user, read.node) for read, user in members):
            return None
        if not self._is_store_mapped:
            return []
        readers = [reader for _, user in members for reader in _readers(self._table, user) if reader != user]
        first_write = min((self._position[write.node] for write in plan.variable.writes), default=None)
        if first_write is not None and any(self._position[reader] > first_write for reader in readers):
            return None
        return readers

    def _read(self, name: str, plan: Plan, switches: tuple[Endpoint, ...]) -> None:
        """Load a weight that lies in host memory: read its variable there."""
        handle = self._switched(name, plan.variable.handle, tf.resource.as_datatype_enum, switches)
        node = NodeDef(name=name, op="ReadVariableOp", input=[handle])
        node.attr["dtype"].type = self._table.nodes[plan.variable.handle].attr["dtype"].type
        self._add(node)

    def _update_in_place(self, plan: Plan) -> None:
        """Let the optimizer change a variable where it lies, in host memory."""
        moves = [t.node for t in plan.variable.writes] + [t.node for t in plan.after if t.op != "VariableShape"]
        moves.sort(key=self._position.__getitem__)
        first, last = self._position[moves[0]], self._position[moves[-1]]
        size = plan.variable.num_bytes
        self.events.append(Event("update", plan.index, moves[0], size, first, last, ((moves[-1], last),)))

    def _update(self, plan: Plan) -> None:
        """Let the variable exist from a load before its first write to a store after its last."""
        variable = plan.variable
        dtype = self._table.nodes[variable.handle].attr["dtype"].type
        writes = sorted(variable.writes, key=lambda touch: self._position[touch.node])
        first = writes[0]
        prefix = f"{variable.handle}/cs_update"
        moves = [t.node for t in writes] + [t.node for t in plan.after if t.op != "VariableShape"]
        replaced_first = first.op in REPLACING_OPS and not self._liveness.branches(first.node)
        begun: list[str] = []  # where the write's branch is not taken, the value must still wait for its load
        if replaced_first:
            start = first.node
        else:
            load = self._weight_call(f"{prefix}/load", LOAD_TOKEN, plan, (), [])
            assign = NodeDef(name=f"{prefix}/begin", op="AssignVariableOp", input=[variable.handle, load.name])
            assign.attr["dtype"].type = dtype
            self._add(assign)
            start = load.name
            begun = [assign.name]
            for node in moves:
                self._extra_control.setdefault(node, []).append(assign.name)
        read = NodeDef(name=f"{prefix}/value", op="ReadVariableOp", input=[variable.handle])
        read.attr["dtype"].type = dtype
        done = [self._liveness.alive(touch.node) for touch in writes]
        read.input.extend(f"^{name}" for name in dict.fromkeys(begun + done))
        self._add(read)
        store = self._weight_call(f"{prefix}/store", STORE_TOKEN, plan, (), [(read.name, dtype)])
        waits = [store.name, *(self._liveness.alive(name) for name in moves)]
        end = NodeDef(name=f"{prefix}/end", op="DestroyResourceOp", input=[variable.handle])
        end.input.extend(f"^{name}" for name in dict.fromkeys(waits))
        self._add(end)
        self._ends.append(end.name)
        positions = [self._position[name] for name in moves]
        finisher = ((end.name, max(positions)),)
        self.events.append(
            Event("update", plan.index, start, variable.num_bytes, min(positions), max(positions), finisher)
        )

    def _sliced_update(self, cut: Slices, plans: Sequence[Plan]) -> None:
        """Run an optimizer op slice by slice, each on variables that exist from its load to its store."""
        node = self._table.nodes[cut.node]
        inputs = [self._input(cut.node, endpoint) for endpoint in self._table.data_inputs(cut.node)]
        control = self._waits(cut.node)
        gradient = GRADIENT_INPUT[node.op]
        dtype = self._table.nodes[cut.handles[0]].attr["dtype"].type
        shape = plans[0].variable.shape
        assert shape is not None
        position = self._position[cut.node]
        applies = []
        for number, (start, stop) in enumerate(cut.pairs):
            prefix = f"{cut.node}/cs_rows_{start}"
            place = position + number / len(cut.pairs)
            rows = [stop - start, *shape[1:]]
            piece = NodeDef(name=f"{prefix}/gradient", op="Slice", input=[inputs[gradient]])
            for name, values in (("from", [start, *[0] * (len(shape) - 1)]), ("size", rows)):
                piece.input.append(self._add(constant_node(f"{prefix}/{name}", np.array(values, np.int64))))
            piece.attr["T"].type, piece.attr["Index"].type = dtype, tf.int64.as_datatype_enum
            self._add(piece)
            apply = NodeDef.FromString(node.SerializeToString())
            apply.name = f"{prefix}/apply"
            del apply.input[:]
            given = list(inputs)
            given[gradient] = piece.name
            variables = [self._slice_variable(plan, prefix, start, stop, dtype) for plan in plans]
            for index, (handle, _, _) in enumerate(variables):
                given[index] = handle
            apply.input.extend([*given, *control, *(f"^{begin}" for _, begin, _ in variables)])
            applies.append(self._add(apply))
            self._liveness.inherit(apply.name, cut.node)
            done = self._liveness.alive(apply.name)
            for plan, (handle, begin, load) in zip(plans, variables, strict=True):
                end = self._end_of_slice(plan, handle, begin, done, start, dtype)
                size = plan.variable.num_bytes // shape[0] * (stop - start)
                self.events.append(Event("update", plan.index, load, size, place, place, ((end, place),)))
            self.inserted.setdefault(cut.node, []).extend([piece.name, apply.name])
        self._dropped.add(cut.node)
        self._add(NodeDef(name=cut.node, op="NoOp", input=[f"^{name}" for name in applies]))

    def _sliced_assigns(self, cut: AssignSlices, plans: Sequence[Plan]) -> None:
        """Run the ops between a gradient and the assigns that it ends in slice by slice, from loads to stores."""
        graph = Graph(self._table, self._outputs, self._add, self._slice_call, self._input, self._controls)
        waits = [self._waits(write) for write in cut.writes]
        stores: list[list[str]] = [[] for _ in cut.writes]
        for number, (start, stop) in enumerate(cut.pairs):
            after = [names[-_SLICES_AT_A_TIME] for names in stores if len(names) >= _SLICES_AT_A_TIME]
            piece = SliceCopy(graph, cut, [plan.variable for plan in plans], start, stop, after)
            place = cut.place + number / len(cut.pairs)
            for index, plan in enumerate(plans):
                first, store = piece.assign(index, waits[index])
                stores[index].append(store)
                assert plan.variable.shape is not None
                size = plan.variable.num_bytes // plan.variable.shape[0] * (stop - start)
                self.events.append(Event("update", plan.index, first, size, place, place, ((store, place),)))
                self._ends.append(self._liveness.alive(store))
            self.inserted.setdefault(cut.writes[-1], []).extend(piece.copies.values())
        self._dropped.update((*cut.inner, *cut.writes))
        for write, names in zip(cut.writes, stores, strict=True):
            self._add(NodeDef(name=write, op="NoOp", input=[f"^{name}" for name in names]))

    def _slice_call(
        self, name: str, token: str, variable: Variable, touch: Touch, inputs: list[tuple[str, int]]
    ) -> NodeDef:
        """A call about rows of a variable, dead where a touch of it would be."""
        self._liveness.inherit(name, touch.node)
        plan = next(plan for plan in self._plans if plan.variable is variable)
        return self._weight_call(name, token, plan, touch.switches, inputs)

    def _controls(self, name: str) -> list[str]:
        """What an op waits for, beside its inputs, as control edges."""
        controls = [endpoint.node for endpoint in self._table.inputs[name] if endpoint.is_control]
        kept = [control for node in controls if node not in self._sliced for control in self._control_of(node)]
        return [f"^{control}" for control in dict.fromkeys(kept)]

    def _waits(self, write: str) -> list[str]:
        """What the update of a weight waits for, beside its inputs, as control edges."""
        node = self._table.nodes[write]
        control = [text for text in node.input if text.startswith("^") and text[1:] not in self._dropped_reads]
        return control + [f"^{name}" for name in dict.fromkeys(self._extra_control.pop(write, ()))]

    def _slice_variable(self, plan: Plan, prefix: str, start: int, stop: int, dtype: int) -> tuple[str, str, str]:
        """A variable for some rows of a weight; return (handle, op that gives it its value, load)."""
        base = f"{prefix}/{plan.index}"
        handle = NodeDef(name=base, op="VarHandleOp")
        handle.attr["dtype"].type = dtype
        handle.attr["shared_name"].s = base.encode()
        assert plan.variable.shape is not None
        rows = [stop - start, *plan.variable.shape[1:]]
        handle.attr["shape"].shape.CopyFrom(tf.TensorShape(rows).as_proto())
        self._add(handle)
        numbers = [
            (self._add(constant_node(f"{base}/cs_{name}", np.int64(value))), tf.int64.as_datatype_enum)
            for name, value in (("start", start), ("stop", stop))
        ]
        if self._is_store_mapped:
            load = self._weight_call(f"{base}/load", LEND_TOKEN, plan, (), numbers)
            value = self._part_of_lent(base, load.name, rows, dtype)
        else:
            load = self._weight_call(f"{base}/load", SLICE_LOAD_TOKEN, plan, (), numbers)
            value = load.name
        begin = NodeDef(name=f"{base}/begin", op="AssignVariableOp", input=[handle.name, value])
        begin.attr["dtype"].type = dtype
        return handle.name, self._add(begin), load.name

    def _part_of_lent(self, base: str, load: str, shape: list[int], dtype: int) -> str:
        """All but the last element of a lent array, in its shape: a part of the same memory.

        TensorFlow copies a NumPy array before an optimizer changes it, but not a slice of one: that lets the optimizer
        work where the store has the weight. Where TensorFlow copies after all, the store sees that and copies back.
        """
        part = NodeDef(name=f"{base}/part", op="Slice", input=[load])
        for name, number in (("part_from", 0), ("part_size", int(np.prod(shape, dtype=np.int64)))):
            part.input.append(self._add(constant_node(f"{base}/{name}", np.array([number], np.int64))))
        part.attr["T"].type, part.attr["Index"].type = dtype, INT64
        target = self._add(constant_node(f"{base}/part_shape", np.array(shape, np.int64)))
        value = NodeDef(name=f"{base}/part_shaped", op="Reshape", input=[self._add(part), target])
        value.attr["T"].type, value.attr["Tshape"].type = dtype, INT64
        return self._add(value)

    def _end_of_slice(self, plan: Plan, handle: str, begin: str, done: str, start: int, dtype: int) -> str:
        """Store a slice's variable and release it; return the op after which it is gone."""
        value = NodeDef(name=f"{handle}/value", op="ReadVariableOp", input=[handle, f"^{begin}", f"^{done}"])
        value.attr["dtype"].type = dtype
        self._add(value)
        inputs = [(f"{handle}/cs_start", tf.int64.as_datatype_enum), (value.name, dtype)]
        store = self._weight_call(f"{handle}/store", SLICE_STORE_TOKEN, plan, (), inputs)
        end = NodeDef(name=f"{handle}/end", op="DestroyResourceOp", input=[handle, f"^{store.name}"])
        self._ends.append(self._add(end))
        return end.name

    def _input(self, user: str, endpoint: Endpoint) -> str:
        """What an op takes in place of an input."""
        return self._refill.get((user, endpoint), str(endpoint))

    def _weight_call(
        self, name: str, token: str, plan: Plan, switches: tuple[Endpoint, ...], inputs: list[tuple[str, int]]
    ) -> NodeDef:
        dtype = self._table.nodes[plan.variable.handle].attr["dtype"].type
        return self._call(name, token, plan.index, dtype, switches, inputs)

    def _call(
        self,
        name: str,
        token: str,
        stored: int,
        dtype: int,
        switches: tuple[Endpoint, ...],
        inputs: list[tuple[str, int]],
    ) -> NodeDef:
        """A call into the weight store: load, gather(ids) or store(value), dead where its branch is not taken.

        Args:
            name: Of the new node.
            token: Which call.
            stored: Index into Program.stored.
            dtype: Of what is stored there, as TensorFlow's number.
            switches: The branches that it is in.
            inputs: Further arguments, with their dtypes.
        """
        index = self._switched(name, self._add(index_node(name, stored)), INT64, switches)
        node = call_node(name, token, index, dtype, inputs)
        self._add(node)
        return node

    def _switched(self, name: str, value: str, dtype: int, switches: tuple[Endpoint, ...]) -> str:
        """A value that is dead where the branches it is for are not taken."""
        for level, endpoint in enumerate(switches):
            predicate = self._table.data_inputs(endpoint.node)[1]
            switch = NodeDef(name=f"{name}/cs_switch_{level}", op="Switch", input=[value, str(predicate)])
            switch.attr["T"].type = dtype
            value = str(Endpoint(self._add(switch), endpoint.port))
        return value

    def _gates(self) -> None:
        """Chain the events by gates; each event waits for its gate."""
        waits, self.most_held_bytes = find_waits(self.events, self._window_bytes)
        previous = None
        for number, (event, finishers) in enumerate(zip(self.events, waits, strict=True)):
            if event.kind == "gather":
                continue
            alive = dict.fromkeys(self._liveness.alive(name) for name in finishers)
            if alive or previous is None:
                inputs = [f"^{name}" for name in alive] + ([f"^{previous}"] if previous else [])
                previous = self._add(NodeDef(name=f"cs_gate/{number}", op="NoOp", input=inputs))
            if event.node in self._new:
                self._new[event.node].input.append(f"^{previous}")
            else:
                self._extra_control.setdefault(event.node, []).append(previous)
