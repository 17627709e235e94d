"""Steps as short lists of ops, and a simple simulation of the memory of their values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import hypothesis.strategies as st

from cerebras_tensorflow.compiler.memory.liveness import ALIASES
from cerebras_tensorflow.graph.cost import Output
from cerebras_tensorflow.graph.nodes import Endpoint, GraphDef, NodeDef, NodeTable


@dataclass(frozen=True)
class Op:
    """An op of a list.

    Attributes:
        name: Of the node.
        inputs: As in a NodeDef.
        sizes: Bytes of each output.
        op: Its type; "Any" stands for one that computes.
    """

    name: str
    inputs: tuple[str, ...] = ()
    sizes: tuple[int, ...] = ()
    op: str = "Any"


@dataclass(frozen=True)
class OpList:
    """What the compiler's functions take: the graph, the order, the outputs."""

    table: NodeTable
    order: list[str]
    outputs: dict[str, list[Output]]


def op_list(ops: Sequence[Op], unknown: Sequence[str] = ()) -> OpList:
    """Return a list of ops, in their order, as a graph.

    Args:
        ops: The ops.
        unknown: Names of those whose outputs have no static shape.
    """
    graph_def = GraphDef()
    graph_def.node.extend(NodeDef(name=op.name, op=op.op, input=op.inputs) for op in ops)
    outputs = {
        op.name: [Output("uint8", None if op.name in unknown else (size,), size) for size in op.sizes] for op in ops
    }
    return OpList(NodeTable(graph_def), [op.name for op in ops], outputs)


@st.composite
def drawn_ops(draw: st.DrawFn) -> list[Op]:
    """Up to twenty ops with up to two outputs of a few sizes, some of them Reshapes."""
    ops: list[Op] = []
    ends: list[tuple[Endpoint, int]] = []
    for number in range(draw(st.integers(2, 20))):
        name = f"op{number}"
        if ends and draw(st.integers(0, 4)) == 0:
            end, size = draw(st.sampled_from(ends))
            ops.append(Op(name, (str(end),), (size,), "Reshape"))
        else:
            inputs = draw(st.lists(st.sampled_from(ends), max_size=3, unique=True)) if ends else []
            sizes = draw(st.lists(st.sampled_from([0, 1, 2, 3, 5, 8]), max_size=2))
            ops.append(Op(name, tuple(str(end) for end, _ in inputs), tuple(sizes)))
        ends += [(Endpoint(name, port), size) for port, size in enumerate(ops[-1].sizes)]
    return ops


def simulate(step: OpList) -> list[int]:
    """Return the bytes of live values while each op runs, by counting references.

    An unused output needs no memory. An output reuses the buffer of an input of the same size that no later op needs.
    """
    buffer: dict[Endpoint, Endpoint] = {}
    references: dict[Endpoint, int] = {}
    for name in step.order:
        inputs = step.table.data_inputs(name)
        is_alias = step.table.nodes[name].op in ALIASES
        for port in range(len(step.outputs[name])):
            end = Endpoint(name, port)
            buffer[end] = buffer[inputs[0]] if is_alias else end
        for end in () if is_alias else inputs:
            references[buffer[end]] = references.get(buffer[end], 0) + 1
    live: dict[Endpoint, int] = {}
    taken = []
    for name in step.order:
        if step.table.nodes[name].op in ALIASES:
            taken.append(sum(live.values()))
            continue
        for end in step.table.data_inputs(name):
            references[buffer[end]] -= 1
        dying = [end for end in live if not references[end]]
        places = [live[end] for end in dying]
        extra = 0
        for port, output in enumerate(step.outputs[name]):
            end = Endpoint(name, port)
            if not output.num_bytes or not references.get(end):
                continue
            if output.num_bytes in places:
                places.remove(output.num_bytes)
            else:
                extra += output.num_bytes
            live[end] = output.num_bytes
        made = [Endpoint(name, port) for port in range(len(step.outputs[name]))]
        taken.append(sum(size for end, size in live.items() if end not in made) + extra)
        for end in dying:
            del live[end]
    return taken
