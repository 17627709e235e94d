"""The nodes of weights' updates: in place, whole from a load to a store, or slice by slice."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from cerebras_tensorflow.compiler.nodes.emission import Emission, VariableUses
from cerebras_tensorflow.compiler.nodes.store_calls import INT64
from cerebras_tensorflow.compiler.slicing.apply_ops import GRADIENT_INPUT, SlicedApply
from cerebras_tensorflow.compiler.slicing.assigns import SlicedAssign
from cerebras_tensorflow.compiler.slicing.copies import SliceCopy
from cerebras_tensorflow.graph.nodes import NodeDef, constant_node
from cerebras_tensorflow.graph.program import (
    LEND_TOKEN,
    LOAD_TOKEN,
    SLICE_LOAD_TOKEN,
    SLICE_STORE_TOKEN,
    STORE_TOKEN,
    Event,
    Residence,
)
from cerebras_tensorflow.graph.variables import REPLACING_OPS

# Slices of an update made of assigns that are in memory at a time: one that is loaded, one that is worked on.
_SLICES_AT_A_TIME = 2


class UpdateNodes:
    """The emission of the updates.

    Args:
        emission: Where the nodes go.
        residence: Where the weights lie. A mapped file lends its memory to the optimizer's ops.
    """

    def __init__(self, emission: Emission, residence: Residence) -> None:
        self._emission = emission
        self._residence = residence

    def update_in_place(self, plan: VariableUses) -> None:
        """Let the optimizer change a variable where it lies, in host memory."""
        moves = [t.node for t in plan.variable.writes] + [t.node for t in plan.after if t.op != "VariableShape"]
        moves.sort(key=self._emission.position.__getitem__)
        first, last = self._emission.position[moves[0]], self._emission.position[moves[-1]]
        size = plan.variable.num_bytes
        self._emission.events.append(Event("update", plan.index, moves[0], size, first, last, ((moves[-1], last),)))

    def update(self, plan: VariableUses) -> None:
        """Let the variable exist from a load before its first write to a store after its last."""
        variable = plan.variable
        dtype = self._emission.table.nodes[variable.handle].attr["dtype"].type
        writes = sorted(variable.writes, key=lambda access: self._emission.position[access.node])
        first = writes[0]
        prefix = f"{variable.handle}/cs_update"
        moves = [t.node for t in writes] + [t.node for t in plan.after if t.op != "VariableShape"]
        replaced_first = first.op in REPLACING_OPS and not self._emission.deadness.branches(first.node)
        begun: list[str] = []  # where the write's branch is not taken, the value must still wait for its load
        if replaced_first:
            start = first.node
        else:
            load = self._emission.weight_call(f"{prefix}/load", LOAD_TOKEN, plan, (), [])
            assign = NodeDef(name=f"{prefix}/begin", op="AssignVariableOp", input=[variable.handle, load.name])
            assign.attr["dtype"].type = dtype
            self._emission.add(assign)
            start = load.name
            begun = [assign.name]
            for node in moves:
                self._emission.extra_control.setdefault(node, []).append(assign.name)
        read = NodeDef(name=f"{prefix}/value", op="ReadVariableOp", input=[variable.handle])
        read.attr["dtype"].type = dtype
        done = [self._emission.deadness.alive(access.node) for access in writes]
        read.input.extend(f"^{name}" for name in dict.fromkeys(begun + done))
        self._emission.add(read)
        store = self._emission.weight_call(f"{prefix}/store", STORE_TOKEN, plan, (), [(read.name, dtype)])
        waits = [store.name, *(self._emission.deadness.alive(name) for name in moves)]
        end = NodeDef(name=f"{prefix}/end", op="DestroyResourceOp", input=[variable.handle])
        end.input.extend(f"^{name}" for name in dict.fromkeys(waits))
        self._emission.add(end)
        self._emission.ends.append(end.name)
        positions = [self._emission.position[name] for name in moves]
        finisher = ((end.name, max(positions)),)
        self._emission.events.append(
            Event("update", plan.index, start, variable.num_bytes, min(positions), max(positions), finisher)
        )

    def sliced_update(self, cut: SlicedApply, plans: Sequence[VariableUses]) -> None:
        """Run an optimizer op slice by slice, each on variables that exist from its load to its store."""
        node = self._emission.table.nodes[cut.node]
        inputs = [self._emission.input(cut.node, endpoint) for endpoint in self._emission.table.data_inputs(cut.node)]
        control = self._emission.waits(cut.node)
        gradient = GRADIENT_INPUT[node.op]
        dtype = self._emission.table.nodes[cut.handles[0]].attr["dtype"].type
        shape = plans[0].variable.shape
        assert shape is not None
        position = self._emission.position[cut.node]
        applies = []
        for number, (start, stop) in enumerate(cut.pairs):
            prefix = f"{cut.node}/cs_rows_{start}"
            place = position + number / len(cut.pairs)
            rows = [stop - start, *shape[1:]]
            piece = NodeDef(name=f"{prefix}/gradient", op="Slice", input=[inputs[gradient]])
            for name, values in (("from", [start, *[0] * (len(shape) - 1)]), ("size", rows)):
                piece.input.append(self._emission.add(constant_node(f"{prefix}/{name}", np.array(values, np.int64))))
            piece.attr["T"].type, piece.attr["Index"].type = dtype, tf.int64.as_datatype_enum
            self._emission.add(piece)
            apply = NodeDef.FromString(node.SerializeToString())
            apply.name = f"{prefix}/apply"
            del apply.input[:]
            given = list(inputs)
            given[gradient] = piece.name
            variables = [self._slice_variable(plan, prefix, start, stop, dtype) for plan in plans]
            for index, (handle, _, _) in enumerate(variables):
                given[index] = handle
            apply.input.extend([*given, *control, *(f"^{begin}" for _, begin, _ in variables)])
            applies.append(self._emission.add(apply))
            self._emission.deadness.inherit(apply.name, cut.node)
            done = self._emission.deadness.alive(apply.name)
            for plan, (handle, begin, load) in zip(plans, variables, strict=True):
                end = self._end_of_slice(plan, handle, begin, done, start, dtype)
                size = plan.variable.num_bytes // shape[0] * (stop - start)
                self._emission.events.append(Event("update", plan.index, load, size, place, place, ((end, place),)))
            self._emission.inserted.setdefault(cut.node, []).extend([piece.name, apply.name])
        self._emission.dropped.add(cut.node)
        self._emission.add(NodeDef(name=cut.node, op="NoOp", input=[f"^{name}" for name in applies]))

    def sliced_assigns(self, cut: SlicedAssign, plans: Sequence[VariableUses]) -> None:
        """Run the ops between a gradient and the assigns that it ends in slice by slice, from loads to stores."""
        waits = [self._emission.waits(write) for write in cut.writes]
        stores: list[list[str]] = [[] for _ in cut.writes]
        for number, (start, stop) in enumerate(cut.pairs):
            after = [names[-_SLICES_AT_A_TIME] for names in stores if len(names) >= _SLICES_AT_A_TIME]
            piece = SliceCopy(self._emission, cut, plans, start, stop, after)
            place = cut.place + number / len(cut.pairs)
            for index, plan in enumerate(plans):
                first, store = piece.assign(index, waits[index])
                stores[index].append(store)
                assert plan.variable.shape is not None
                size = plan.variable.num_bytes // plan.variable.shape[0] * (stop - start)
                self._emission.events.append(Event("update", plan.index, first, size, place, place, ((store, place),)))
                self._emission.ends.append(self._emission.deadness.alive(store))
            self._emission.inserted.setdefault(cut.writes[-1], []).extend(piece.copies.values())
        self._emission.dropped.update((*cut.inner, *cut.writes))
        for write, names in zip(cut.writes, stores, strict=True):
            self._emission.add(NodeDef(name=write, op="NoOp", input=[f"^{name}" for name in names]))

    def _slice_variable(
        self, plan: VariableUses, prefix: str, start: int, stop: int, dtype: int
    ) -> tuple[str, str, str]:
        """A variable for some rows of a weight; return (handle, op that gives it its value, load)."""
        base = f"{prefix}/{plan.index}"
        handle = NodeDef(name=base, op="VarHandleOp")
        handle.attr["dtype"].type = dtype
        handle.attr["shared_name"].s = base.encode()
        assert plan.variable.shape is not None
        rows = [stop - start, *plan.variable.shape[1:]]
        handle.attr["shape"].shape.CopyFrom(tf.TensorShape(rows).as_proto())
        self._emission.add(handle)
        numbers = [
            (self._emission.add(constant_node(f"{base}/cs_{name}", np.int64(value))), tf.int64.as_datatype_enum)
            for name, value in (("start", start), ("stop", stop))
        ]
        if self._residence is Residence.MAPPED_FILE:
            load = self._emission.weight_call(f"{base}/load", LEND_TOKEN, plan, (), numbers)
            value = self._part_of_lent(base, load.name, rows, dtype)
        else:
            load = self._emission.weight_call(f"{base}/load", SLICE_LOAD_TOKEN, plan, (), numbers)
            value = load.name
        begin = NodeDef(name=f"{base}/begin", op="AssignVariableOp", input=[handle.name, value])
        begin.attr["dtype"].type = dtype
        return handle.name, self._emission.add(begin), load.name

    def _part_of_lent(self, base: str, load: str, shape: list[int], dtype: int) -> str:
        """All but the last element of a lent array, in its shape: a part of the same memory.

        TensorFlow copies a NumPy array before an optimizer changes it, but not a slice of one: that lets the optimizer
        work where the store has the weight. Where TensorFlow copies after all, the store sees that and copies back.
        """
        part = NodeDef(name=f"{base}/part", op="Slice", input=[load])
        for name, number in (("part_from", 0), ("part_size", int(np.prod(shape, dtype=np.int64)))):
            part.input.append(self._emission.add(constant_node(f"{base}/{name}", np.array([number], np.int64))))
        part.attr["T"].type, part.attr["Index"].type = dtype, INT64
        target = self._emission.add(constant_node(f"{base}/part_shape", np.array(shape, np.int64)))
        value = NodeDef(name=f"{base}/part_shaped", op="Reshape", input=[self._emission.add(part), target])
        value.attr["T"].type, value.attr["Tshape"].type = dtype, INT64
        return self._emission.add(value)

    def _end_of_slice(self, plan: VariableUses, handle: str, begin: str, done: str, start: int, dtype: int) -> str:
        """Store a slice's variable and release it; return the op after which it is gone."""
        value = NodeDef(name=f"{handle}/value", op="ReadVariableOp", input=[handle, f"^{begin}", f"^{done}"])
        value.attr["dtype"].type = dtype
        self._emission.add(value)
        inputs = [(f"{handle}/cs_start", tf.int64.as_datatype_enum), (value.name, dtype)]
        store = self._emission.weight_call(f"{handle}/store", SLICE_STORE_TOKEN, plan, (), inputs)
        end = NodeDef(name=f"{handle}/end", op="DestroyResourceOp", input=[handle, f"^{store.name}"])
        self._emission.ends.append(self._emission.add(end))
        return end.name
