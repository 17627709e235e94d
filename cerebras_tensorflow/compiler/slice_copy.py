"""The nodes of one slice of an update that is made of ops and assigns."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import tensorflow as tf

from cerebras_tensorflow.compiler.sliced_assigns import ASSIGNS, AssignSlices
from cerebras_tensorflow.compiler.store_calls import INT64
from cerebras_tensorflow.graph.cost import Output
from cerebras_tensorflow.graph.nodes import Endpoint, NodeDef, NodeTable, constant_node
from cerebras_tensorflow.graph.program import SLICE_LOAD_TOKEN, SLICE_STORE_TOKEN
from cerebras_tensorflow.graph.variables import Touch, Variable


@dataclass(frozen=True)
class Graph:
    """What the copies of a slice are made from and go into.

    Attributes:
        table: The graph of the whole step.
        outputs: Of each of its ops.
        add: Takes a new node; returns its name.
        call: Adds a call into the store about a variable, by name, token, variable, its read or write, further inputs.
        source: What an op takes in place of an input, in the new graph.
        controls: What an op waits for in the new graph beside its inputs; its own region left out.
    """

    table: NodeTable
    outputs: Mapping[str, Sequence[Output]]
    add: Callable[[NodeDef], str]
    call: Callable[[str, str, Variable, Touch, list[tuple[str, int]]], NodeDef]
    source: Callable[[str, Endpoint], str]
    controls: Callable[[str], list[str]]


@dataclass
class SliceCopy:
    """One slice.

    Attributes:
        graph: Where it goes.
        cut: The update.
        family: The variables that are assigned to, in the order of the cut's handles.
        start, stop: Rows.
        after: Nodes that its loads wait for.
        copies: Original op -> its copy for the slice.
    """

    graph: Graph
    cut: AssignSlices
    family: Sequence[Variable]
    start: int
    stop: int
    after: Sequence[str]
    copies: dict[str, str] = field(default_factory=dict)
    _loads: dict[str, str] = field(default_factory=dict)
    _parts: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._reads = {touch.node: variable for variable in self.family for touch in variable.reads}
        self._shape = [self.stop - self.start, *(self.family[0].shape or ())[1:]]
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
        write, variable = self.cut.writes[index], self.family[index]
        value = self._taken(write, self.graph.table.data_inputs(write)[1])
        dtype = self.graph.table.nodes[variable.handle].attr["dtype"].type
        change = ASSIGNS[self.graph.table.nodes[write].op]
        if change is not None:
            node = NodeDef(name=f"{self._prefix}/{index}/value", op=change, input=[self._load(variable), value])
            node.attr["T"].type = dtype
            value = self.graph.add(node)
        inputs = [(self._begin, INT64), (value, dtype)]
        store = self.graph.call(
            f"{self._prefix}/{index}/store", SLICE_STORE_TOKEN, variable, variable.writes[0], inputs
        )
        load = self._loads.get(variable.handle)
        store.input.extend([*waits, *([f"^{load}"] if load else [])])
        return load or store.name, store.name

    def _copy(self, name: str) -> None:
        original = self.graph.table.nodes[name]
        copy = NodeDef.FromString(original.SerializeToString())
        copy.name = f"{self._prefix}/cs_op_{len(self.copies)}"
        del copy.input[:]
        copy.input.extend(self._taken(name, endpoint) for endpoint in self.graph.table.data_inputs(name))
        copy.input.extend(self.graph.controls(name))
        self.copies[name] = self.graph.add(copy)

    def _taken(self, user: str, endpoint: Endpoint) -> str:
        """The slice of what an op takes."""
        if endpoint.node in self.copies:
            return self.copies[endpoint.node]
        if endpoint.node in self._reads:
            return self._load(self._reads[endpoint.node])
        source = self.graph.source(user, endpoint)
        output = self.graph.outputs[endpoint.node][endpoint.port]
        return self._part(source, output) if output.shape == self.family[0].shape else source

    def _load(self, variable: Variable) -> str:
        if variable.handle not in self._loads:
            index = [member.handle for member in self.family].index(variable.handle)
            rows = [(self._begin, INT64), (self._end, INT64)]
            name = f"{self._prefix}/{index}/load"
            load = self.graph.call(name, SLICE_LOAD_TOKEN, variable, variable.writes[0], rows)
            load.input.extend(f"^{node}" for node in self.after)
            self._loads[variable.handle] = load.name
        return self._loads[variable.handle]

    def _part(self, source: str, output: Output) -> str:
        """Rows of a tensor that is there as a whole."""
        if source not in self._parts:
            name = f"{self._prefix}/part_{len(self._parts)}"
            begin = [self.start, *[0] * (len(self._shape) - 1)]
            bounds = [self._constant(f"part_{len(self._parts)}/{what}", np.array(numbers, np.int64))
                      for what, numbers in (("from", begin), ("size", self._shape))]  # fmt: skip
            part = NodeDef(name=name, op="Slice", input=[source, *bounds])
            part.attr["T"].type, part.attr["Index"].type = tf.as_dtype(output.dtype).as_datatype_enum, INT64
            self._parts[source] = self.graph.add(part)
        return self._parts[source]

    def _constant(self, name: str, value: np.ndarray | np.generic) -> str:
        return self.graph.add(constant_node(f"{self._prefix}/{name}", value))
