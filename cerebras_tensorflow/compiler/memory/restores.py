"""Makes the nodes for values that leave memory. For late uses they are loaded, or computed again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import tensorflow as tf

from cerebras_tensorflow.compiler.memory.liveness import Use, owner_of
from cerebras_tensorflow.compiler.memory.recomputing import Recomputation, Restores
from cerebras_tensorflow.compiler.memory.spilling import Spill
from cerebras_tensorflow.compiler.nodes.ops import reshape_nodes
from cerebras_tensorflow.compiler.nodes.store_calls import call_node, index_node
from cerebras_tensorflow.graph.cost import Output
from cerebras_tensorflow.graph.nodes import Endpoint, NodeDef, NodeTable, copied
from cerebras_tensorflow.graph.program import PRIVATE_LOAD_TOKEN, STORE_TOKEN, Event

BEFORE_NEXT = 1 - 1e-6
"""Offset from the position of a sliced op to the place after all its slices and before the next op."""


@dataclass(frozen=True)
class RestoreNodes:
    """The nodes for the values of one step.

    Attributes:
        nodes: The new nodes.
        events: Moves of spilled values.
        inputs: (user, endpoint) -> the tensor that the user takes in place of the endpoint.
    """

    nodes: tuple[NodeDef, ...]
    events: tuple[Event, ...]
    inputs: Mapping[tuple[str, Endpoint], str]


def make_restore_nodes(
    table: NodeTable,
    outputs: Mapping[str, Sequence[Output]],
    restores: Restores,
    first_index: int,
    sliced: Mapping[str, str],
) -> RestoreNodes:
    """Return the nodes that bring values back.

    Args:
        table: The graph.
        outputs: Of each op.
        restores: How each value comes back.
        first_index: Index of the first spilled value in Program.stored.
        sliced: Op that is done in slices -> the op after which all slices are done. The slices' positions are between
            that of the op and the next.
    """
    builder = _Builder(table, outputs, first_index, sliced)
    for number, spill in enumerate(restores.spills):
        builder.spill(spill, first_index + number, restores.first_uses.get(spill.endpoint))
    for recomputation in restores.recomputations:
        builder.recompute(recomputation)
    return builder.result()


class _Builder:
    """Collects the nodes. Takes the arguments of make_restore_nodes."""

    def __init__(
        self, table: NodeTable, outputs: Mapping[str, Sequence[Output]], first_index: int, sliced: Mapping[str, str]
    ) -> None:
        self._table = table
        self._outputs = outputs
        self._first_index = first_index
        self._sliced = sliced
        self._loads: dict[Endpoint, str] = {}  # spilled value -> its load
        self._forms: dict[
            tuple[str, Endpoint], str
        ] = {}  # (node, endpoint) -> the node's value, reshaped like the endpoint
        self._nodes: list[NodeDef] = []
        self._events: list[Event] = []
        self._inputs: dict[tuple[str, Endpoint], str] = {}

    def result(self) -> RestoreNodes:
        """Return the nodes made so far."""
        return RestoreNodes(tuple(self._nodes), tuple(self._events), self._inputs)

    def spill(self, spill: Spill, index: int, first_use: int | None) -> None:
        """Store a value when it is made, and load it for its late uses.

        Args:
            spill: The value.
            index: Of the value in Program.stored.
            first_use: Position at which it is loaded, if that is before its own first late use.
        """
        prefix = f"cs_spill/{index - self._first_index}"
        dtype = tf.as_dtype(spill.dtype).as_datatype_enum
        numbers = [index_node(f"{prefix}/{what}", index) for what in ("store", "load")]
        store = call_node(f"{prefix}/store", STORE_TOKEN, numbers[0].name, dtype, [(str(spill.endpoint), dtype)])
        load = call_node(f"{prefix}/load", PRIVATE_LOAD_TOKEN, numbers[1].name, dtype, [])
        load.input.append(f"^{store.name}")
        self._nodes += [*numbers, store, load]
        self._loads[spill.endpoint] = load.name
        self._redirect(spill.late, load.name, spill.endpoint)
        made, size = spill.made, spill.num_bytes
        self._events.append(Event("spill", index, store.name, size, made, made, ((store.name, made),)))
        places = {
            self._sliced.get(use.user, use.user): use.position + BEFORE_NEXT * (use.user in self._sliced)
            for use in spill.late
        }
        finishers = tuple(sorted(places.items(), key=lambda item: item[1]))
        first = spill.late[0].position if first_use is None else first_use
        self._events.append(Event("fill", index, load.name, size, first, finishers[-1][1], finishers))

    def recompute(self, recomputation: Recomputation) -> None:
        """Add copies of the ops that make a value, and give their result to its late uses."""
        copies: dict[str, str] = {}
        for name in recomputation.ops:
            copy = copied(self._table.nodes[name])
            copy.name = f"{recomputation.endpoint.node}/cs_again/{len(copies)}"
            del copy.input[:]
            copy.input.extend(self._source(endpoint, copies) for endpoint in self._table.data_inputs(name))
            if recomputation.trigger is not None:
                copy.input.append(f"^{recomputation.trigger}")
            self._nodes.append(copy)
            copies[name] = copy.name
        self._redirect(recomputation.late, copies[recomputation.endpoint.node], recomputation.endpoint)

    def _source(self, endpoint: Endpoint, copies: Mapping[str, str]) -> str:
        """Return the tensor that a copied op takes in place of the original's input."""
        owner = owner_of(self._table, endpoint)
        if owner.node in copies:
            return self._form(copies[owner.node], owner, endpoint)
        if owner in self._loads:
            return self._form(self._loads[owner], owner, endpoint)
        return str(endpoint)

    def _redirect(self, late: tuple[Use, ...], node: str, made: Endpoint) -> None:
        for use in late:
            self._inputs[(use.user, use.endpoint)] = self._form(node, made, use.endpoint)

    def _form(self, node: str, made: Endpoint, endpoint: Endpoint) -> str:
        """Return a node's value, which replaces `made`, with the shape of `endpoint`, an alias of `made`."""
        if endpoint == made:
            return node
        if (node, endpoint) not in self._forms:
            output = self._outputs[endpoint.node][endpoint.port]
            assert output.shape is not None  # a value of unknown shape is not spilled
            name = f"{node}/cs_form_{len(self._forms)}"
            dtype = tf.as_dtype(output.dtype).as_datatype_enum
            self._nodes += reshape_nodes(name, node, f"{name}/shape", output.shape, dtype)
            self._forms[(node, endpoint)] = name
        return self._forms[(node, endpoint)]
