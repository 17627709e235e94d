"""Make additions to repeated rows of a variable happen in a fixed order.

The kernel of ResourceScatterAdd splits the updates among threads, which reach a row in any order. The kernel of
ResourceScatterNdAdd is serial, so its sums equal those of one thread. Plain gradient descent on an embedding makes such
updates.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import tensorflow as tf

from cerebras_tensorflow.graph.bodies import Body, control_inputs, data_inputs, source_of, table_of_function
from cerebras_tensorflow.graph.cost import Output
from cerebras_tensorflow.graph.loops import frames_of_nodes
from cerebras_tensorflow.graph.nodes import GraphDef, NodeDef, NodeTable, parse_input

_IN_ORDER = {"ResourceScatterAdd": "ResourceScatterNdAdd", "ResourceScatterSub": "ResourceScatterNdSub"}
# Ops that update rows in several threads -> position of the input with the row indices.
UPDATES_OF_ROWS = {
    "ResourceScatterAdd": 1,
    "ResourceScatterSub": 1,
    "ResourceScatterMul": 1,
    "ResourceScatterDiv": 1,
    "ResourceSparseApplyAdagrad": 4,
    "ResourceSparseApplyAdagradV2": 5,
}
_INT32 = tf.int32.as_datatype_enum
_SAME_VALUES = frozenset({"Identity", "Switch", "Enter", "Reshape", "ExpandDims"})
_UNIQUE = frozenset({"Unique", "UniqueV2"})


def add_rows_in_order(graph_def: GraphDef, outputs: Mapping[str, Sequence[Output]]) -> GraphDef:
    """Return the graph with ordered additions wherever rows may repeat, also in function bodies.

    Args:
        graph_def: A step. It is not changed.
        outputs: Outputs of each op of the main graph. Updates of unknown shape may be a scalar, which the ordered op
            does not take, so they are broadcast to the shape of their rows.
    """
    result = GraphDef(versions=graph_def.versions, library=graph_def.library)
    if any(node.op in _IN_ORDER for node in graph_def.node):
        result.node.extend(_in_order(graph_def.node, NodeTable(graph_def), Body(False), outputs))
    else:
        result.node.extend(graph_def.node)
    for function in result.library.function:
        if any(node.op in _IN_ORDER for node in function.node_def):
            nodes = _in_order(list(function.node_def), table_of_function(function), Body(True), {})
            del function.node_def[:]
            function.node_def.extend(nodes)
    return result


def has_distinct_rows(nodes: Mapping[str, NodeDef], node: NodeDef) -> bool:
    """Whether the row indices of an update are surely distinct: the output of Unique, or distinct constants.

    Args:
        nodes: The nodes of the graph or of the function's body, by name.
        node: One of them, whose op is in UPDATES_OF_ROWS.
    """
    text = data_inputs(node)[UPDATES_OF_ROWS[node.op]]
    while (source := nodes.get(source_of(text))) is not None and _keeps_values(source):
        text = data_inputs(source)[0]
    if source is None:  # an argument of the function
        return False
    if source.op == "Const":
        indices = tf.make_ndarray(source.attr["value"].tensor)
        return bool(len(np.unique(indices)) == indices.size)
    # The first output of Unique is "name" in a graph and "name:y:0" in a function; the second repeats its values.
    return source.op in _UNIQUE and text in (source.name, f"{source.name}:y:0")


def _keeps_values(node: NodeDef) -> bool:
    """Whether an op keeps the distinct values of its first input distinct. Of casts, only those from int32 do."""
    is_exact_cast = node.op == "Cast" and node.attr["SrcT"].type == _INT32
    return (node.op in _SAME_VALUES or is_exact_cast) and bool(data_inputs(node))


def _in_order(
    nodes: Iterable[NodeDef], table: NodeTable, body: Body, outputs: Mapping[str, Sequence[Output]]
) -> list[NodeDef]:
    """Return the nodes of a graph or of a function's body, with ordered additions."""
    nodes = list(nodes)
    by_name = {node.name: node for node in nodes}
    frames = frames_of_nodes(table)
    for node in nodes:
        if node.op not in _IN_ORDER or not node.attr["dtype"].type or has_distinct_rows(by_name, node):
            body.nodes.append(node)
            continue
        handle, indices, updates = data_inputs(node)
        source = parse_input(updates)
        known = outputs.get(source.node, ())
        shape = known[source.port].shape if source.port < len(known) else None
        control = (f"^{source_of(indices)}",) if node.name in frames else ()
        if not shape:
            updates = _broadcast(body, node, by_name.get(source_of(handle)), control)
        _add_in_order(body, node, updates, control)
    return body.nodes


def _broadcast(body: Body, node: NodeDef, variable: NodeDef | None, control: tuple[str, ...]) -> str:
    """Add ops that broadcast the updates to the shape of their rows, and return the input string of the result.

    Args:
        body: Receives the ops.
        node: The update.
        variable: The node that makes the variable's handle; None for an argument.
        control: Control inputs of constants.
    """
    handle, indices, updates = data_inputs(node)
    prefix = f"{node.name}/cs_rows"
    types = {"T": node.attr["Tindices"].type, "out_type": _INT32}
    outer = body.add(f"{prefix}/outer", "Shape", [indices], types)
    shape = tf.TensorShape(
        variable.attr["shape"].shape if variable is not None and variable.op == "VarHandleOp" else None
    )
    if shape.is_fully_defined():
        inner = body.constant(f"{prefix}/inner", np.array(shape.as_list()[1:], np.int32), control)
    else:
        whole = body.add(f"{prefix}/variable", "VariableShape", [handle], {"out_type": _INT32})
        begin = body.constant(f"{prefix}/begin", np.array([1], np.int32), control)
        size = body.constant(f"{prefix}/size", np.array([-1], np.int32), control)
        inner = body.add(f"{prefix}/inner", "Slice", [whole, begin, size], {"T": _INT32, "Index": _INT32})
    zero = body.constant(f"{prefix}/zero", np.int32(0), control)
    whole = body.add(f"{prefix}/shape", "ConcatV2", [outer, inner, zero], {"T": _INT32, "Tidx": _INT32})
    body.nodes[-1].attr["N"].i = 2
    types = {"T": node.attr["dtype"].type, "Tidx": _INT32}
    return body.add(f"{prefix}/updates", "BroadcastTo", [updates, whole], types)


def _add_in_order(body: Body, node: NodeDef, updates: str, control: tuple[str, ...]) -> None:
    """Add the ordered form of an update."""
    handle, indices, _ = data_inputs(node)
    prefix = f"{node.name}/cs_rows"
    axis = body.constant(f"{prefix}/axis", np.int32(-1), control)
    types = {"T": node.attr["Tindices"].type, "Tdim": _INT32}
    rows = body.add(prefix, "ExpandDims", [indices, axis], types)
    new = NodeDef(name=node.name, op=_IN_ORDER[node.op], device=node.device)
    new.input.extend([handle, rows, updates, *control_inputs(node)])
    new.attr["T"].CopyFrom(node.attr["dtype"])
    new.attr["Tindices"].CopyFrom(node.attr["Tindices"])
    if "_class" in node.attr:
        new.attr["_class"].CopyFrom(node.attr["_class"])
    body.nodes.append(new)
