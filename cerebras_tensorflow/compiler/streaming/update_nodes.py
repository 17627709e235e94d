"""Makes the nodes that update a weight: in place, as a whole with a load and a store, or slice by slice."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import tensorflow as tf

from cerebras_tensorflow.compiler.nodes.emission import Emission
from cerebras_tensorflow.compiler.nodes.ops import assign_node, barrier_node, read_node, reshape_nodes, slice_nodes
from cerebras_tensorflow.compiler.nodes.store_calls import INT64, call_node
from cerebras_tensorflow.compiler.nodes.uses import VariableUses
from cerebras_tensorflow.compiler.slicing.apply_ops import GRADIENT_INPUT, SlicedApply
from cerebras_tensorflow.compiler.slicing.assigns import SlicedAssign
from cerebras_tensorflow.compiler.slicing.copies import SliceCopy
from cerebras_tensorflow.compiler.streaming.update_functions import call_of, update_function
from cerebras_tensorflow.graph.nodes import NodeDef, constant_node, copied
from cerebras_tensorflow.graph.program import (
    FETCH_TOKEN,
    LEND_TOKEN,
    LOAD_TOKEN,
    SLICE_LOAD_TOKEN,
    SLICE_STORE_TOKEN,
    STORE_TOKEN,
    Event,
    Residence,
)
from cerebras_tensorflow.graph.variables import REPLACING_OPS

# Slices in memory at a time, of an update made of assigns: one is being loaded while another is being computed.
_SLICES_AT_A_TIME = 2


@dataclass(frozen=True)
class _SliceVariable:
    """A variable that holds some rows of a weight.

    Attributes:
        handle: Name of its VarHandleOp.
        begin: The op that gives it its value.
        load: The op that loads that value, or takes it from a load of the whole weight.
        kind: Kind of its event.
    """

    handle: str
    begin: str
    load: str
    kind: str


class UpdateNodes:
    """Adds the updates to an emission.

    Args:
        emission: Where the nodes go.
        residence: Where the weights are between their uses. A mapped file lends its memory to the optimizer.
    """

    def __init__(self, emission: Emission, residence: Residence) -> None:
        self._emission = emission
        self._residence = residence

    def update(self, uses: VariableUses) -> None:
        """Add the nodes that update a weight, unless its update is done in slices."""
        if not uses.variable.writes:
            return
        if self._residence is Residence.HOST_MEMORY:
            self._update_in_place(uses)
        elif uses.variable.writes[0].node not in self._emission.sliced:
            self._update_whole(uses)

    def _update_in_place(self, uses: VariableUses) -> None:
        """Let the optimizer update a variable in place, in host memory."""
        position = self._emission.position
        users = sorted((access.node for access in (*uses.variable.writes, *uses.reads_after)), key=position.__getitem__)
        first, last = position[users[0]], position[users[-1]]
        size = uses.variable.num_bytes
        self._emission.record(Event("update", uses.index, users[0], size, first, last, ((users[-1], last),)))

    def _update_whole(self, uses: VariableUses) -> None:
        """Load the variable before its first write, store it after its last write, and then destroy it."""
        variable, emission, alive = uses.variable, self._emission, self._emission.deadness.alive
        dtype = emission.dtype(variable.handle)
        writes = sorted(variable.writes, key=lambda access: emission.position[access.node])
        users = [access.node for access in (*writes, *uses.reads_after)]
        prefix = f"{variable.handle}/cs_update"
        kept = emission.kept_load(variable.handle)
        begun: list[str] = []  # makes the value wait for its load if the branch of the write is not taken
        if writes[0].op in REPLACING_OPS and not emission.deadness.branches(writes[0].node):
            start = writes[0].node
        elif kept is not None:
            start = emission.add(assign_node(f"{prefix}/begin", variable.handle, kept, dtype))
            begun = [start]
        else:
            start = emission.weight_call(f"{prefix}/load", LOAD_TOKEN, uses, (), []).name
            begun = [emission.add(assign_node(f"{prefix}/begin", variable.handle, start, dtype))]
        for node in users if begun else ():
            emission.wait_for(node, begun)
        value = emission.add(read_node(f"{prefix}/value", variable.handle, dtype))
        emission.wait_for(value, dict.fromkeys([*begun, *(alive(access.node) for access in writes)]))
        store = emission.weight_call(f"{prefix}/store", STORE_TOKEN, uses, (), [(value, dtype)]).name
        end = emission.add(NodeDef(name=f"{prefix}/end", op="DestroyResourceOp", input=[variable.handle]))
        emission.wait_for(end, dict.fromkeys([store, *(alive(name) for name in users)]))
        emission.finish_with(end)
        places = [emission.position[name] for name in users]
        first, last = min(places), max(places)
        kind = "replace" if kept is not None else "update"
        emission.record(Event(kind, uses.index, start, variable.num_bytes, first, last, ((end, last),)))

    def apply_in_slices(self, cut: SlicedApply, family: Sequence[VariableUses]) -> None:
        """Run an optimizer op slice by slice. A slice's variables exist from its loads to its stores.

        Args:
            cut: The op and its slices.
            family: The variables that it updates, in the order of its inputs.
        """
        emission = self._emission
        is_by_function = self._can_call_function(cut)
        if len(cut.pairs) == 1 and cut.blocks is None and not (is_by_function or self._residence.is_in_place):
            for uses in family:
                self._update_whole(uses)
            return
        inputs = [emission.input(cut.node, endpoint) for endpoint in emission.table.data_inputs(cut.node)]
        control = emission.waits(cut.node)
        if is_by_function:
            self._apply_by_function(cut, family, inputs, control)
            return
        dtype = emission.dtype(cut.handles[0])
        position = emission.position[cut.node]
        applies = []
        for number, (start, stop) in enumerate(cut.pairs):
            prefix = f"{cut.node}/cs_rows_{start}"
            place = position + number / len(cut.pairs)
            variables = [self._begin_slice(uses, f"{prefix}/{uses.index}", start, stop, dtype) for uses in family]
            if cut.blocks is not None:
                piece = cut.blocks.pieces[number]
                emission.delay(cut.blocks.ops_of(number), [variable.begin for variable in variables])
            else:
                gradient = inputs[GRADIENT_INPUT[emission.table.nodes[cut.node].op]]
                piece = self._gradient_rows(prefix, gradient, start, [stop - start, *family[0].shape[1:]], dtype)
            apply = self._apply_copy(cut, f"{prefix}/apply", inputs, piece, variables, control)
            applies.append(apply)
            done = emission.deadness.alive(apply)
            for uses, variable in zip(family, variables, strict=True):
                end = self._end_slice(uses, variable, done, dtype)
                size = uses.row_bytes() * (stop - start)
                emission.record(Event(variable.kind, uses.index, variable.load, size, place, place, ((end, place),)))
            emission.place_before(cut.node, [apply] if cut.blocks is not None else [piece, apply])
        emission.drop(cut.node, *([cut.blocks.node] if cut.blocks is not None else []))
        emission.add(barrier_node(cut.node, applies))

    def _can_call_function(self, cut: SlicedApply) -> bool:
        """Whether a function can do the slices: the weights are in a store, and the update always runs."""
        emission = self._emission
        is_free = not emission.deadness.branches(cut.node) and not emission.table.nodes[cut.node].device
        return self._residence is Residence.STORE and is_free

    def _apply_by_function(
        self, cut: SlicedApply, family: Sequence[VariableUses], inputs: Sequence[str], control: Sequence[str]
    ) -> None:
        """Run an optimizer op slice by slice, each with a call that reads ahead and a call of a function.

        Args:
            cut: The op and its slices.
            family: The variables that it updates, in the order of its inputs.
            inputs: The op's inputs.
            control: Its control edges.
        """
        emission = self._emission
        node = emission.table.nodes[cut.node]
        dtype = emission.dtype(cut.handles[0])
        loads = [emission.kept_load(uses.variable.handle) for uses in family]
        kept = [load for load in loads if load is not None]
        function = update_function(node, [load is not None for load in loads], dtype)
        emission.add_function(function)
        others = list(inputs[len(family) :])
        gradient = GRADIENT_INPUT[node.op] - len(family)
        calls = []
        for number, (start, stop) in enumerate(cut.pairs):
            prefix = f"{cut.node}/cs_rows_{start}"
            place = emission.position[cut.node] + number / len(cut.pairs)
            shape = [stop - start, *family[0].shape[1:]]
            fetched = [uses.index for uses, load in zip(family, loads, strict=True) if load is None]
            constants = {
                "fetched": [*fetched, start, stop],
                "stored": [*(uses.index for uses in family), start, stop],
                "from": [start, *[0] * (len(shape) - 1)],
                "size": shape,
            }
            for name, numbers in constants.items():
                emission.add(constant_node(f"{prefix}/{name}", np.array(numbers, np.int64)))
            arguments = [f"{prefix}/{name}" for name in constants] + kept
            name = f"{prefix}/apply"
            fetch = name
            if fetched:
                fetch = emission.add(call_node(f"{prefix}/fetch", FETCH_TOKEN, arguments[0], INT64, []))
            piece, placed = others[gradient], [name]
            if cut.blocks is not None:
                piece = cut.blocks.pieces[number]
                if fetched:
                    emission.delay(cut.blocks.ops_of(number), [fetch])
            elif len(cut.pairs) > 1:
                piece = self._gradient_rows(prefix, piece, start, shape, dtype)
                placed = [piece, name]
            arguments += [*others[:gradient], piece, *others[gradient + 1 :]]
            waits = [*control, f"^{fetch}"] if fetched else control
            calls.append(emission.add(call_of(function, name, arguments, waits)))
            emission.finish_with(name)
            emission.place_before(cut.node, placed)
            for uses, load in zip(family, loads, strict=True):
                kind, move = ("update", fetch) if load is None else ("replace", name)
                size = uses.row_bytes() * (stop - start)
                emission.record(Event(kind, uses.index, move, size, place, place, ((name, place),)))
        emission.drop(cut.node, *([cut.blocks.node] if cut.blocks is not None else []))
        emission.add(barrier_node(cut.node, calls))

    def assign_in_slices(self, cut: SlicedAssign, family: Sequence[VariableUses]) -> None:
        """Run a group of assigns slice by slice, with the ops that only they need.

        Args:
            cut: The assigns and their slices.
            family: The variables that they assign to, in the same order.
        """
        emission = self._emission
        waits = [emission.waits(write) for write in cut.writes]
        stores: list[list[str]] = [[] for _ in cut.writes]
        for number, (start, stop) in enumerate(cut.pairs):
            after = [names[-_SLICES_AT_A_TIME] for names in stores if len(names) >= _SLICES_AT_A_TIME]
            piece = SliceCopy(emission, cut, family, number, after)
            place = cut.place + number / len(cut.pairs)
            for index, uses in enumerate(family):
                first, store = piece.assign(index, waits[index])
                stores[index].append(store)
                size = uses.row_bytes() * (stop - start)
                emission.record(Event(piece.kind(index), uses.index, first, size, place, place, ((store, place),)))
                emission.finish_with(emission.deadness.alive(store))
            emission.place_before(cut.writes[-1], piece.copies.values())
        emission.drop(*cut.inner, *cut.writes, *cut.blocks)
        for write, names in zip(cut.writes, stores, strict=True):
            emission.add(barrier_node(write, names))

    def _gradient_rows(self, prefix: str, gradient: str, start: int, shape: list[int], dtype: int) -> str:
        """Return the rows of a gradient for one slice."""
        bounds = (f"{prefix}/from", f"{prefix}/size")
        begin = [start, *[0] * (len(shape) - 1)]
        return self._emission.add(*slice_nodes(f"{prefix}/gradient", gradient, bounds, begin, shape, dtype))

    def _apply_copy(
        self,
        cut: SlicedApply,
        name: str,
        inputs: Sequence[str],
        gradient: str,
        variables: Sequence[_SliceVariable],
        control: Sequence[str],
    ) -> str:
        """Add the optimizer op of one slice. Return its name."""
        node = self._emission.table.nodes[cut.node]
        apply = copied(node)
        apply.name = name
        del apply.input[:]
        taken = list(inputs)
        taken[GRADIENT_INPUT[node.op]] = gradient
        taken[: len(variables)] = [variable.handle for variable in variables]
        apply.input.extend([*taken, *control, *(f"^{variable.begin}" for variable in variables)])
        self._emission.add(apply)
        self._emission.deadness.inherit(name, cut.node)
        return name

    def _begin_slice(self, uses: VariableUses, base: str, start: int, stop: int, dtype: int) -> _SliceVariable:
        """Add a variable for some rows of a weight, and load them into it."""
        handle = NodeDef(name=base, op="VarHandleOp")
        handle.attr["dtype"].type = dtype
        handle.attr["shared_name"].s = base.encode()
        rows = [stop - start, *uses.shape[1:]]
        handle.attr["shape"].shape.CopyFrom(tf.TensorShape(rows).as_proto())
        self._emission.add(handle)
        kept = self._emission.kept_load(uses.variable.handle)
        if kept is not None:
            self._emission.add(constant_node(f"{base}/cs_start", np.int64(start)))
            bounds = (f"{base}/part_from", f"{base}/part_size")
            begin_rows = [start, *[0] * (len(rows) - 1)]
            part = self._emission.add(*slice_nodes(f"{base}/part", kept, bounds, begin_rows, rows, dtype))
            begin = self._emission.add(assign_node(f"{base}/begin", base, part, dtype))
            return _SliceVariable(base, begin, part, "replace")
        numbers = [
            (self._emission.add(constant_node(f"{base}/cs_{name}", np.int64(value))), INT64)
            for name, value in (("start", start), ("stop", stop))
        ]
        is_lent = self._residence.is_in_place
        token = LEND_TOKEN if is_lent else SLICE_LOAD_TOKEN
        load = self._emission.weight_call(f"{base}/load", token, uses, (), numbers).name
        value = self._part_of_lent(base, load, rows, dtype) if is_lent else load
        begin = self._emission.add(assign_node(f"{base}/begin", base, value, dtype))
        return _SliceVariable(base, begin, load, "update")

    def _part_of_lent(self, base: str, load: str, shape: list[int], dtype: int) -> str:
        """Return a lent array without its last element, in the shape of the rows.

        TensorFlow copies a NumPy array before an optimizer overwrites it, but it does not copy a slice of one. So the
        optimizer works in the store's own memory. If TensorFlow copies after all, the store notices and copies back.
        """
        size = int(np.prod(shape, dtype=np.int64))
        bounds = (f"{base}/part_from", f"{base}/part_size")
        part = self._emission.add(*slice_nodes(f"{base}/part", load, bounds, [0], [size], dtype))
        return self._emission.add(*reshape_nodes(f"{base}/part_shaped", part, f"{base}/part_shape", shape, dtype))

    def _end_slice(self, uses: VariableUses, variable: _SliceVariable, done: str, dtype: int) -> str:
        """Store a slice's variable, then destroy it. Return the op that destroys it."""
        handle = variable.handle
        value = self._emission.add(read_node(f"{handle}/value", handle, dtype))
        self._emission.wait_for(value, [variable.begin, done])
        inputs = [(f"{handle}/cs_start", INT64), (value, dtype)]
        store = self._emission.weight_call(f"{handle}/store", SLICE_STORE_TOKEN, uses, (), inputs).name
        end = NodeDef(name=f"{handle}/end", op="DestroyResourceOp", input=[handle, f"^{store}"])
        self._emission.finish_with(self._emission.add(end))
        return str(end.name)
