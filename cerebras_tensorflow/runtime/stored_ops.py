"""Replaces ops on streamed variables, such as those of a Saver or a hook, by calls into the weight store."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import tensorflow as tf

from cerebras_tensorflow.errors import CompileError
from cerebras_tensorflow.graph.nodes import NodeDef, constant_node
from cerebras_tensorflow.graph.program import GATHER_TOKEN, PRIVATE_LOAD_TOKEN, STORE_TOKEN, WeightSpec

_INT32, _INT64 = 3, 9  # DT_INT32, DT_INT64
_CHANGES = {"AssignAddVariableOp": "AddV2", "AssignSubVariableOp": "Sub"}


def call_store(nodes: list[NodeDef], streamed: Mapping[str, int], specs: Mapping[str, WeightSpec]) -> list[NodeDef]:
    """Return nodes in which streamed variables are read from the store and written to it.

    Args:
        nodes: Nodes to add to a Program's graph.
        streamed: Name of each streamed variable -> its index in the store.
        specs: Name of each streamed variable -> its spec.

    Raises:
        CompileError: If an op needs a streamed variable for something that the store cannot do.
    """
    if not streamed:
        return nodes
    handles = {name: name for name in streamed}  # the Program may have the handle's op
    handles.update({node.name: name for node in nodes for name in [_variable(node, streamed)] if name is not None})
    result: list[NodeDef] = []
    for node in nodes:
        if node.name in handles:
            continue
        taken = [handles[text] for text in node.input if text in handles]
        controls = [text for text in node.input if text.startswith("^") and text[1:] not in handles]
        if taken:
            result += _replaced(node, controls, streamed[taken[0]], specs[taken[0]])
        else:
            result.append(_with_inputs(node, [text for text in node.input if not text.startswith("^")] + controls))
    return result


def assigned_weights(nodes: Sequence[NodeDef]) -> dict[str, int]:
    """Return op name -> index in the store, of the nodes from `call_store` that assign a streamed variable."""
    places = {node.name: node for node in nodes if node.op == "Const"}
    return {
        node.name: int(tf.make_ndarray(places[node.input[0]].attr["value"].tensor))
        for node in nodes
        if node.op == "PyFunc" and node.attr["token"].s == STORE_TOKEN.encode()
    }


def _variable(node: NodeDef, streamed: Mapping[str, int]) -> str | None:
    """Return the streamed variable of a handle node. None for any other node."""
    if node.op != "VarHandleOp":
        return None
    return next((name for name in (node.name, node.attr["shared_name"].s.decode()) if name in streamed), None)


def _replaced(node: NodeDef, controls: list[str], index: int, spec: WeightSpec) -> list[NodeDef]:
    place = constant_node(f"{node.name}/cs_index", np.int64(index))
    others = [text for text in node.input if not text.startswith("^")][1:]
    kind = node.attr["dtype"].type
    if node.op == "ReadVariableOp":
        return [place, _call(node.name, PRIVATE_LOAD_TOKEN, [place.name, *controls], [_INT64], kind)]
    if node.op == "AssignVariableOp":
        return [place, _call(node.name, STORE_TOKEN, [place.name, *others, *controls], [_INT64, kind], _INT32)]
    if node.op in _CHANGES:
        value = _call(f"{node.name}/cs_value", PRIVATE_LOAD_TOKEN, [place.name, *controls], [_INT64], kind)
        changed = NodeDef(name=f"{node.name}/cs_changed", op=_CHANGES[node.op], input=[value.name, *others])
        changed.attr["T"].type = kind
        return [
            place,
            value,
            changed,
            _call(node.name, STORE_TOKEN, [place.name, changed.name], [_INT64, kind], _INT32),
        ]
    if node.op == "VarIsInitializedOp":
        return [_with_inputs(constant_node(node.name, np.bool_(True)), controls)]
    if node.op == "VariableShape":
        shape = np.array(spec.shape, np.int32 if node.attr["out_type"].type in (0, _INT32) else np.int64)
        return [_with_inputs(constant_node(node.name, shape), controls)]
    if node.op == "ResourceGather" and not node.attr["batch_dims"].i:
        rows = NodeDef(name=f"{node.name}/cs_rows", op="Cast", input=others)
        rows.attr["SrcT"].type, rows.attr["DstT"].type = node.attr["Tindices"].type, _INT64
        return [place, rows, _call(node.name, GATHER_TOKEN, [place.name, rows.name, *controls], [_INT64, _INT64], kind)]
    raise CompileError(
        f"{node.name} ({node.op}) needs {spec.name}, which is streamed and not in memory between its uses. A hook may "
        "read and assign it. For anything else, raise min_stream_bytes to keep it resident."
    )


def _call(name: str, token: str, inputs: list[str], takes: list[int], gives: int) -> NodeDef:
    node = NodeDef(name=name, op="PyFunc", input=inputs)
    node.attr["token"].s = token.encode()
    node.attr["Tin"].list.type.extend(takes)
    node.attr["Tout"].list.type.append(gives)
    return node


def _with_inputs(node: NodeDef, inputs: list[str]) -> NodeDef:
    copied = NodeDef()
    copied.CopyFrom(node)
    copied.ClearField("input")
    copied.input.extend(inputs)
    return copied
