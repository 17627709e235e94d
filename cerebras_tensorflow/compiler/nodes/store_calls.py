"""Makes the nodes by which a graph calls its weight store."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from cerebras_tensorflow.graph.nodes import NodeDef, constant_node
from cerebras_tensorflow.graph.program import FETCH_TOKEN, SLICE_STORE_TOKEN, STORE_TOKEN

INT64 = tf.int64.as_datatype_enum


def index_node(name: str, stored: int) -> NodeDef:
    """Return the constant with a call's index into Program.stored."""
    return constant_node(f"{name}/cs_weight", np.int64(stored))


def call_node(name: str, token: str, index: str, dtype: int, inputs: list[tuple[str, int]]) -> NodeDef:
    """Return a call into the store.

    Args:
        name: Name of the new node.
        token: The call, one of the tokens in graph.program.
        index: Tensor with the index into Program.stored.
        dtype: Dtype of the stored value, as TensorFlow's number.
        inputs: Further arguments, with their dtypes.
    """
    node = NodeDef(name=name, op="PyFunc", input=[index, *(text for text, _ in inputs)])
    node.attr["token"].s = token.encode()
    node.attr["Tin"].list.type.extend([INT64, *(number for _, number in inputs)])
    has_no_value = token in (STORE_TOKEN, SLICE_STORE_TOKEN, FETCH_TOKEN)
    node.attr["Tout"].list.type.append(tf.int32.as_datatype_enum if has_no_value else dtype)
    return node
