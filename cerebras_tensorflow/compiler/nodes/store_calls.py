"""The nodes by which a graph calls its weight store."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from cerebras_tensorflow.graph.nodes import NodeDef, constant_node
from cerebras_tensorflow.graph.program import SLICE_STORE_TOKEN, STORE_TOKEN

INT64 = tf.int64.as_datatype_enum


def index_node(name: str, stored: int) -> NodeDef:
    """Return the constant that tells a call which entry of Program.stored it is about."""
    return constant_node(f"{name}/cs_weight", np.int64(stored))


def call_node(name: str, token: str, index: str, dtype: int, inputs: list[tuple[str, int]]) -> NodeDef:
    """Return a call into the store.

    Args:
        name: Of the new node.
        token: Which call.
        index: The tensor that is the index into Program.stored.
        dtype: Of the stored value, as TensorFlow's number.
        inputs: Further arguments, with their dtypes.
    """
    node = NodeDef(name=name, op="PyFunc", input=[index, *(text for text, _ in inputs)])
    node.attr["token"].s = token.encode()
    node.attr["Tin"].list.type.extend([INT64, *(number for _, number in inputs)])
    stores = token in (STORE_TOKEN, SLICE_STORE_TOKEN)
    node.attr["Tout"].list.type.append(tf.int32.as_datatype_enum if stores else dtype)
    return node
