"""The nodes through which values leave the micro-batches and enter the update."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from cerebras_tensorflow.graph.conditionals import Branch
from cerebras_tensorflow.graph.cost import Output
from cerebras_tensorflow.graph.micro_batches import GRADIENT_TOKEN
from cerebras_tensorflow.graph.nodes import Endpoint, NodeDef, constant_node

READ = "/read"  # suffix of the op that reads a total in the store


def sink_nodes(name: str, number: int, taken: Sequence[str], dtypes: Sequence[str]) -> list[NodeDef]:
    """Return the nodes that pass the gradient of a micro-batch to the runtime.

    Args:
        name: Name of the call.
        number: Number of the gradient.
        taken: Ops of the gradient: values, and rows if it is sparse.
        dtypes: Their dtypes.
    """
    index = constant_node(f"{name}/index", np.int64(number))
    node = NodeDef(name=name, op="PyFunc", input=[index.name, *taken])
    node.attr["token"].s = GRADIENT_TOKEN.encode()
    types = [tf.as_dtype(dtype).as_datatype_enum for dtype in dtypes]
    node.attr["Tin"].list.type.extend([tf.int64.as_datatype_enum, *types])
    node.attr["Tout"].list.type.append(tf.int32.as_datatype_enum)
    return [index, node]


def placeholder_node(name: str, output: Output, is_any_length: bool = False) -> NodeDef:
    """Return a placeholder for a value like an op's output, with the same or with any length of dim 0."""
    node = NodeDef(name=name, op="Placeholder")
    node.attr["dtype"].type = tf.as_dtype(output.dtype).as_datatype_enum
    if output.shape is None:
        node.attr["shape"].shape.unknown_rank = True
    else:
        shape = (None, *output.shape[1:]) if is_any_length else output.shape
        node.attr["shape"].shape.CopyFrom(tf.TensorShape(shape).as_proto())
    return node


def variable_nodes(name: str, output: Output) -> list[NodeDef]:
    """Return a variable for a total in the store, and the op `<name>/read` that reads it."""
    dtype = tf.as_dtype(output.dtype).as_datatype_enum
    handle = NodeDef(name=name, op="VarHandleOp")
    handle.attr["dtype"].type = dtype
    handle.attr["shape"].shape.CopyFrom(tf.TensorShape(output.shape).as_proto())
    handle.attr["shared_name"].s = name.encode()
    read = NodeDef(name=f"{name}{READ}", op="ReadVariableOp", input=[name])
    read.attr["dtype"].type = dtype
    return [handle, read]


def always_nodes(name: str, endpoint: Endpoint, branches: Sequence[Branch], output: Output) -> list[NodeDef]:
    """Return the nodes of a value that is always there: that of a branch of tf.cond, and zeros if it is not taken.

    Args:
        name: Name of the last node.
        endpoint: The value in the branch.
        branches: The branches around it, outermost first.
        output: Its dtype and shape.
    """
    dtype = tf.as_dtype(output.dtype)
    shape = constant_node(f"{name}/shape", np.array(output.shape or (), np.int64))
    zero = constant_node(f"{name}/zero", np.zeros((), dtype.as_numpy_dtype))
    zeros = NodeDef(name=f"{name}/zeros", op="Fill", input=[shape.name, zero.name])
    zeros.attr["T"].type = dtype.as_datatype_enum
    zeros.attr["index_type"].type = tf.int64.as_datatype_enum
    switches, others = [], []
    value = zeros.name
    for level, (condition, side) in enumerate(branches):
        switches.append(_switch_node(f"{name}/{level}", value, condition, dtype))
        others.append(str(Endpoint(switches[-1].name, 1 - side)))
        value = str(Endpoint(switches[-1].name, side))
    merge = NodeDef(name=name, op="Merge", input=[str(endpoint), *others])
    merge.attr["T"].type = dtype.as_datatype_enum
    merge.attr["N"].i = len(merge.input)
    return [shape, zero, zeros, *switches, merge]


def branch_nodes(name: str, branches: Sequence[Branch], output: Output) -> tuple[list[NodeDef], str]:
    """Return the nodes that pass a value into branches of tf.cond, and the input string of the value there."""
    nodes, value = [], name
    for level, (condition, side) in enumerate(branches):
        nodes.append(_switch_node(f"{name}/{level}", value, condition, tf.as_dtype(output.dtype)))
        value = str(Endpoint(nodes[-1].name, side))
    return nodes, value


def _switch_node(name: str, value: str, condition: str, dtype: tf.DType) -> NodeDef:
    node = NodeDef(name=name, op="Switch", input=[value, condition])
    node.attr["T"].type = dtype.as_datatype_enum
    return node
