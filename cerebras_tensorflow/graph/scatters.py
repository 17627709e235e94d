"""Make additions to repeated rows of a variable happen in a fixed order.

The kernel of ResourceScatterAdd splits the updates among threads, which reach a row in any order. The kernel of
ResourceScatterNdAdd is serial, so its sums equal those of one thread. Plain gradient descent on an embedding makes such
updates.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import tensorflow as tf

from cerebras_tensorflow.graph.bodies import Body, control_inputs, data_inputs
from cerebras_tensorflow.graph.cost import Output
from cerebras_tensorflow.graph.loops import frames_of_nodes
from cerebras_tensorflow.graph.nodes import GraphDef, NodeDef, NodeTable

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
_SAME_VALUES = frozenset({"Identity", "Switch", "Enter", "Cast", "Reshape", "ExpandDims"})
_UNIQUE = frozenset({"Unique", "UniqueV2"})


def add_rows_in_order(graph_def: GraphDef, outputs: Mapping[str, Sequence[Output]]) -> GraphDef:
    """Return the graph with ordered additions, wherever rows may repeat.

    Args:
        graph_def: A step. It is not changed.
        outputs: Outputs of each op. If the shapes of both updates and variable are unknown, the addition stays: the
            updates may be a scalar, which the ordered op does not take.
    """
    table = NodeTable(graph_def)
    frames = frames_of_nodes(table)
    body = Body(is_function=False)
    for name, node in table.nodes.items():
        if node.op not in _IN_ORDER or has_distinct_rows(table, name):
            body.nodes.append(node)
            continue
        handle, indices, updates = table.data_inputs(name)
        known = outputs.get(updates.node, ())
        shape = known[updates.port].shape if updates.port < len(known) else None
        variable_shape = tf.TensorShape(table.nodes[handle.node].attr["shape"].shape)
        if not shape and not variable_shape.is_fully_defined():
            body.nodes.append(node)
            continue
        control = (f"^{indices.node}",) if name in frames else ()
        _add_in_order(body, node, None if shape else variable_shape.as_list(), control)
    result = GraphDef(versions=graph_def.versions, library=graph_def.library)
    result.node.extend(body.nodes)
    return result


def has_distinct_rows(table: NodeTable, name: str) -> bool:
    """Whether the row indices of an update are known to be distinct: output of Unique, or distinct constants.

    Args:
        table: The graph or the function.
        name: Name of a node whose op is in UPDATES_OF_ROWS.
    """
    source = table.data_inputs(name)[UPDATES_OF_ROWS[table.nodes[name].op]]
    while table.nodes[source.node].op in _SAME_VALUES and table.data_inputs(source.node):
        source = table.data_inputs(source.node)[0]
    origin = table.nodes[source.node]
    if origin.op == "Const":
        indices = tf.make_ndarray(origin.attr["value"].tensor)
        return bool(len(np.unique(indices)) == indices.size)
    return origin.op in _UNIQUE and source.port == 0


def _add_in_order(body: Body, node: NodeDef, variable_shape: Sequence[int] | None, control: tuple[str, ...]) -> None:
    """Add the ordered form of an update. If variable_shape is given, broadcast the updates, which may be a scalar."""
    handle, indices, updates = data_inputs(node)
    prefix = f"{node.name}/cs_rows"
    axis = body.constant(f"{prefix}/axis", np.int32(-1), control)
    types = {"T": node.attr["Tindices"].type, "Tdim": _INT32}
    rows = body.add(prefix, "ExpandDims", [indices, axis], types)
    if variable_shape is not None:
        types = {"T": node.attr["Tindices"].type, "out_type": _INT32}
        outer = body.add(f"{prefix}/outer", "Shape", [indices], types)
        inner = body.constant(f"{prefix}/inner", np.array(variable_shape[1:], np.int32), control)
        zero = body.constant(f"{prefix}/zero", np.int32(0), control)
        whole = body.add(f"{prefix}/shape", "ConcatV2", [outer, inner, zero], {"T": _INT32, "Tidx": _INT32})
        body.nodes[-1].attr["N"].i = 2
        types = {"T": node.attr["dtype"].type, "Tidx": _INT32}
        updates = body.add(f"{prefix}/updates", "BroadcastTo", [updates, whole], types)
    new = NodeDef(name=node.name, op=_IN_ORDER[node.op], device=node.device)
    new.input.extend([handle, rows, updates, *control_inputs(node)])
    new.attr["T"].CopyFrom(node.attr["dtype"])
    new.attr["Tindices"].CopyFrom(node.attr["Tindices"])
    if "_class" in node.attr:
        new.attr["_class"].CopyFrom(node.attr["_class"])
    body.nodes.append(new)
