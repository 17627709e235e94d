"""The nodes for values that leave memory: spilled and loaded again, or made again, for their late uses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import tensorflow as tf

from cerebras_tensorflow.compiler.memory.liveness import Use, owner_of
from cerebras_tensorflow.compiler.memory.recomputing import Recomputation, Restores
from cerebras_tensorflow.compiler.memory.spilling import Spill
from cerebras_tensorflow.compiler.nodes.store_calls import INT64, call_node, index_node
from cerebras_tensorflow.graph.cost import Output
from cerebras_tensorflow.graph.nodes import Endpoint, NodeDef, NodeTable, constant_node
from cerebras_tensorflow.graph.program import PRIVATE_LOAD_TOKEN, STORE_TOKEN, Event

_BEFORE_NEXT = 1e-6  # of a position


class RestoreNodes:
    """The emission of the nodes for one step.

    Args:
        table: The graph.
        outputs: Of each op.
        first_index: Index of the first spilled value in Program.stored.
        sliced: Ops that are done in slices -> the op after which all slices are done. Slices lie between the position
            of their uses and the next.

    Attributes:
        nodes: The new nodes.
        events: Moves of spilled values.
        inputs: (user, endpoint) -> what the user takes in place of the endpoint.
    """

    def __init__(
        self, table: NodeTable, outputs: Mapping[str, Sequence[Output]], first_index: int, sliced: Mapping[str, str]
    ) -> None:
        self._table = table
        self._outputs = outputs
        self._first_index = first_index
        self._sliced = sliced
        self._loads: dict[Endpoint, str] = {}  # spilled value -> its load
        self._forms: dict[tuple[str, Endpoint], str] = {}  # (node, endpoint): the node's value in its shape
        self.nodes: list[NodeDef] = []
        self.events: list[Event] = []
        self.inputs: dict[tuple[str, Endpoint], str] = {}

    def add(self, restores: Restores) -> None:
        """Make the nodes of all values."""
        for number, spill in enumerate(restores.spills):
            self._spill(spill, self._first_index + number, restores.first_uses.get(spill.endpoint))
        for recomputation in restores.recomputations:
            self._recompute(recomputation)

    def _spill(self, spill: Spill, index: int, first_use: int | None) -> None:
        """Store a value when it is made, and load it for its late uses."""
        prefix = f"cs_spill/{index - self._first_index}"
        dtype = tf.as_dtype(spill.dtype).as_datatype_enum
        numbers = [index_node(f"{prefix}/{what}", index) for what in ("store", "load")]
        value = [(str(spill.endpoint), dtype)]
        store = call_node(f"{prefix}/store", STORE_TOKEN, numbers[0].name, dtype, value)
        load = call_node(f"{prefix}/load", PRIVATE_LOAD_TOKEN, numbers[1].name, dtype, [])
        load.input.append(f"^{store.name}")
        self.nodes += [*numbers, store, load]
        self._loads[spill.endpoint] = load.name
        self._redirect(spill.late, load.name, spill.endpoint)
        made, size = spill.made, spill.num_bytes
        self.events.append(Event("spill", index, store.name, size, made, made, ((store.name, made),)))
        places = {
            self._sliced.get(use.user, use.user): use.position + (1 - _BEFORE_NEXT) * (use.user in self._sliced)
            for use in spill.late
        }
        finishers = tuple(sorted(places.items(), key=lambda item: item[1]))
        first = spill.late[0].position if first_use is None else first_use
        last = finishers[-1][1]
        self.events.append(Event("fill", index, load.name, size, first, last, finishers))

    def _recompute(self, recomputation: Recomputation) -> None:
        """Run copies of the ops that make a value, for its late uses."""
        copies: dict[str, str] = {}
        for name in recomputation.ops:
            copy = NodeDef.FromString(self._table.nodes[name].SerializeToString())
            copy.name = f"{recomputation.endpoint.node}/cs_again/{len(copies)}"
            del copy.input[:]
            copy.input.extend(self._source(endpoint, copies) for endpoint in self._table.data_inputs(name))
            if recomputation.trigger is not None:
                copy.input.append(f"^{recomputation.trigger}")
            self.nodes.append(copy)
            copies[name] = copy.name
        self._redirect(recomputation.late, copies[recomputation.endpoint.node], recomputation.endpoint)

    def _source(self, endpoint: Endpoint, copies: Mapping[str, str]) -> str:
        """What a copied op takes in place of an input of the original."""
        owner = owner_of(self._table, endpoint)
        if owner.node in copies:
            return self._form(copies[owner.node], owner, endpoint)
        if owner in self._loads:
            return self._form(self._loads[owner], owner, endpoint)
        return str(endpoint)

    def _redirect(self, late: tuple[Use, ...], node: str, made: Endpoint) -> None:
        for use in late:
            self.inputs[(use.user, use.endpoint)] = self._form(node, made, use.endpoint)

    def _form(self, node: str, made: Endpoint, endpoint: Endpoint) -> str:
        """A node's value, which stands for the output `made`, in the shape of an alias of that output."""
        if endpoint == made:
            return node
        if (node, endpoint) not in self._forms:
            output = self._outputs[endpoint.node][endpoint.port]
            name = f"{node}/cs_form_{len(self._forms)}"
            shape = constant_node(f"{name}/shape", np.array(output.shape, np.int64))
            form = NodeDef(name=name, op="Reshape", input=[node, shape.name])
            form.attr["T"].type, form.attr["Tshape"].type = tf.as_dtype(output.dtype).as_datatype_enum, INT64
            self.nodes += [shape, form]
            self._forms[(node, endpoint)] = name
        return self._forms[(node, endpoint)]
