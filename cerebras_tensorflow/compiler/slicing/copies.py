"""The nodes of one slice of an update that is made of ops and assigns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import tensorflow as tf

from cerebras_tensorflow.compiler.nodes.emission import Emission, VariableUses
from cerebras_tensorflow.compiler.nodes.store_calls import INT64
from cerebras_tensorflow.compiler.slicing.assigns import ASSIGNS, SlicedAssign
from cerebras_tensorflow.graph.cost import Output
from cerebras_tensorflow.graph.nodes import Endpoint, NodeDef, constant_node
from cerebras_tensorflow.graph.program import SLICE_LOAD_TOKEN, SLICE_STORE_TOKEN


@dataclass
class SliceCopy:
    """One slice.

    Attributes:
        emission: Where it goes.
        cut: The update.
        plans: Of the variables that are assigned to, in the order of the cut's handles.
        start, stop: Rows.
        after: Nodes that its loads wait for.
        copies: Original op -> its copy for the slice.
    """

    emission: Emission
    cut: SlicedAssign
    plans: Sequence[VariableUses]
    start: int
    stop: int
    after: Sequence[str]
    copies: dict[str, str] = field(default_factory=dict)
    _loads: dict[int, str] = field(default_factory=dict)
    _parts: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._reads = {access.node: index for index, plan in enumerate(self.plans) for access in plan.variable.reads}
        self._whole = self.plans[0].variable.shape or ()
        self._shape = [self.stop - self.start, *self._whole[1:]]
        self._begin = self._constant("start", np.int64(self.start))
        self._end = self._constant("stop", np.int64(self.stop))
        for name in self.cut.inner:
            self._copy(name)

    @property
    def _prefix(self) -> str:
        return f"{self.cut.writes[-1]}/cs_rows_{self.start}"

    def assign(self, index: int, waits: Sequence[str]) -> tuple[str, str]:
        """Add what one of the assigns does; return (its first call into the store, its store).

        Args:
            index: Of the assign in the cut.
            waits: What it waits for.
        """
        write, variable = self.cut.writes[index], self.plans[index].variable
        value = self._taken(write, self.emission.table.data_inputs(write)[1])
        dtype = self.emission.table.nodes[variable.handle].attr["dtype"].type
        change = ASSIGNS[self.emission.table.nodes[write].op]
        if change is not None:
            node = NodeDef(name=f"{self._prefix}/{index}/value", op=change, input=[self._load(index), value])
            node.attr["T"].type = dtype
            value = self.emission.add(node)
        inputs = [(self._begin, INT64), (value, dtype)]
        store = self._call(f"{self._prefix}/{index}/store", SLICE_STORE_TOKEN, self.plans[index], inputs)
        load = self._loads.get(index)
        store.input.extend([*waits, *([f"^{load}"] if load else [])])
        return load or store.name, store.name

    def _copy(self, name: str) -> None:
        original = self.emission.table.nodes[name]
        copy = NodeDef.FromString(original.SerializeToString())
        copy.name = f"{self._prefix}/cs_op_{len(self.copies)}"
        del copy.input[:]
        copy.input.extend(self._taken(name, endpoint) for endpoint in self.emission.table.data_inputs(name))
        copy.input.extend(self.emission.controls(name))
        self.copies[name] = self.emission.add(copy)

    def _taken(self, user: str, endpoint: Endpoint) -> str:
        """The slice of what an op takes."""
        if endpoint.node in self.copies:
            return self.copies[endpoint.node]
        if endpoint.node in self._reads:
            return self._load(self._reads[endpoint.node])
        source = self.emission.input(user, endpoint)
        output = self.emission.outputs[endpoint.node][endpoint.port]
        return self._part(source, output) if output.shape == self._whole else source

    def _load(self, index: int) -> str:
        if index not in self._loads:
            rows = [(self._begin, INT64), (self._end, INT64)]
            load = self._call(f"{self._prefix}/{index}/load", SLICE_LOAD_TOKEN, self.plans[index], rows)
            load.input.extend(f"^{node}" for node in self.after)
            self._loads[index] = load.name
        return self._loads[index]

    def _call(self, name: str, token: str, plan: VariableUses, inputs: list[tuple[str, int]]) -> NodeDef:
        """A call about rows of a variable, dead where its assign would be."""
        write = plan.variable.writes[0]
        self.emission.deadness.inherit(name, write.node)
        return self.emission.weight_call(name, token, plan, write.switches, inputs)

    def _part(self, source: str, output: Output) -> str:
        """Rows of a tensor that is there as a whole."""
        if source not in self._parts:
            name = f"{self._prefix}/part_{len(self._parts)}"
            begin = [self.start, *[0] * (len(self._shape) - 1)]
            bounds = [self._constant(f"part_{len(self._parts)}/{what}", np.array(numbers, np.int64))
                      for what, numbers in (("from", begin), ("size", self._shape))]  # fmt: skip
            part = NodeDef(name=name, op="Slice", input=[source, *bounds])
            part.attr["T"].type, part.attr["Index"].type = tf.as_dtype(output.dtype).as_datatype_enum, INT64
            self._parts[source] = self.emission.add(part)
        return self._parts[source]

    def _constant(self, name: str, value: np.ndarray | np.generic) -> str:
        return self.emission.add(constant_node(f"{self._prefix}/{name}", value))
