"""Makes the nodes of one slice of an update that consists of ops and assigns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import tensorflow as tf

from cerebras_tensorflow.compiler.nodes.emission import Emission
from cerebras_tensorflow.compiler.nodes.ops import slice_nodes
from cerebras_tensorflow.compiler.nodes.store_calls import INT64
from cerebras_tensorflow.compiler.nodes.uses import VariableUses
from cerebras_tensorflow.compiler.slicing.assigns import ASSIGNS, SlicedAssign
from cerebras_tensorflow.graph.cost import Output
from cerebras_tensorflow.graph.nodes import Endpoint, NodeDef, constant_node, copied
from cerebras_tensorflow.graph.program import SLICE_LOAD_TOKEN, SLICE_STORE_TOKEN


class SliceCopy:
    """One slice: copies of the update's ops, and the loads and stores of its rows.

    Args:
        emission: Where the nodes go.
        cut: The update.
        family: The variables that are assigned to, in the order of the cut's handles.
        number: Which slice it is.
        after: Nodes that its loads wait for.
    """

    def __init__(
        self,
        emission: Emission,
        cut: SlicedAssign,
        family: Sequence[VariableUses],
        number: int,
        after: Sequence[str],
    ) -> None:
        start, stop = cut.pairs[number]
        self._emission = emission
        self._cut = cut
        self._family = family
        self._start = start
        self._number = number
        self._after = after
        self._whole = family[0].shape
        self._shape = [stop - start, *self._whole[1:]]
        self._prefix = f"{cut.writes[-1]}/cs_rows_{start}"
        self._member_read = {access.node: i for i, uses in enumerate(family) for access in uses.variable.reads}
        self._copies: dict[str, str] = {}
        self._loads: dict[int, str] = {}
        self._parts: dict[str, str] = {}
        self._begin = self._constant("start", np.int64(start))
        self._end = self._constant("stop", np.int64(stop))
        for name in cut.inner:
            self._copy(name)

    @property
    def copies(self) -> Mapping[str, str]:
        """Original op -> its copy for the slice."""
        return self._copies

    def kind(self, index: int) -> str:
        """Return the kind of the event of one of the assigns. It is known when `assign` has been called."""
        is_kept = self._emission.kept_load(self._family[index].variable.handle) is not None
        return "replace" if is_kept and index in self._loads else "update"

    def assign(self, index: int, waits: Sequence[str]) -> tuple[str, str]:
        """Add the nodes that do one of the assigns. Return (first call into the store, store).

        Args:
            index: Index of the assign in the cut.
            waits: Control edges of its store.
        """
        table = self._emission.table
        write, uses = self._cut.writes[index], self._family[index]
        value = self._taken(write, table.data_inputs(write)[1])
        dtype = self._emission.dtype(uses.variable.handle)
        change = ASSIGNS[table.nodes[write].op]
        if change is not None:
            node = NodeDef(name=f"{self._prefix}/{index}/value", op=change, input=[self._load(index), value])
            node.attr["T"].type = dtype
            value = self._emission.add(node)
        inputs = [(self._begin, INT64), (value, dtype)]
        store = self._call(f"{self._prefix}/{index}/store", SLICE_STORE_TOKEN, uses, inputs)
        load = self._loads.get(index)
        store.input.extend([*waits, *([f"^{load}"] if load else [])])
        return load or store.name, store.name

    def _copy(self, name: str) -> None:
        table = self._emission.table
        copy = copied(table.nodes[name])
        copy.name = f"{self._prefix}/cs_op_{len(self._copies)}"
        del copy.input[:]
        copy.input.extend(self._taken(name, endpoint) for endpoint in table.data_inputs(name))
        copy.input.extend(self._emission.controls(name))
        self._copies[name] = self._emission.add(copy)

    def _taken(self, user: str, endpoint: Endpoint) -> str:
        """Return the tensor that the copy of an op takes in place of an input."""
        if endpoint.node in self._copies:
            return self._copies[endpoint.node]
        if endpoint.node in self._member_read:
            return self._load(self._member_read[endpoint.node])
        if endpoint.node in self._cut.blocks:
            blocks = self._cut.blocks[endpoint.node]
            self._emission.delay(blocks.ops_of(self._number), self._after)
            return blocks.pieces[self._number]
        source = self._emission.input(user, endpoint)
        output = self._emission.outputs[endpoint.node][endpoint.port]
        return self._part(source, output) if output.shape == self._whole else source

    def _load(self, index: int) -> str:
        kept = self._emission.kept_load(self._family[index].variable.handle)
        if index not in self._loads and kept is not None:
            dtype = self._emission.dtype(self._family[index].variable.handle)
            self._loads[index] = self._rows_of(kept, f"{self._prefix}/{index}/load", dtype)
            self._emission.wait_for(self._loads[index], self._after)
        elif index not in self._loads:
            rows = [(self._begin, INT64), (self._end, INT64)]
            load = self._call(f"{self._prefix}/{index}/load", SLICE_LOAD_TOKEN, self._family[index], rows)
            load.input.extend(f"^{node}" for node in self._after)
            self._loads[index] = load.name
        return self._loads[index]

    def _call(self, name: str, token: str, uses: VariableUses, inputs: list[tuple[str, int]]) -> NodeDef:
        """Add a call that moves rows of a variable. It is dead whenever the original assign would be dead."""
        write = uses.variable.writes[0]
        self._emission.deadness.inherit(name, write.node)
        return self._emission.weight_call(name, token, uses, write.switches, inputs)

    def _part(self, source: str, output: Output) -> str:
        """Return the slice's rows of a tensor that exists as a whole."""
        if source not in self._parts:
            name = f"{self._prefix}/part_{len(self._parts)}"
            self._parts[source] = self._rows_of(source, name, tf.as_dtype(output.dtype).as_datatype_enum)
        return self._parts[source]

    def _rows_of(self, source: str, name: str, dtype: int) -> str:
        """Add the op that takes the slice's rows of a tensor; dtype is TensorFlow's number."""
        begin = [self._start, *[0] * (len(self._shape) - 1)]
        nodes = slice_nodes(name, source, (f"{name}/from", f"{name}/size"), begin, self._shape, dtype)
        return self._emission.add(*nodes)

    def _constant(self, name: str, value: np.generic) -> str:
        return self._emission.add(constant_node(f"{self._prefix}/{name}", value))
