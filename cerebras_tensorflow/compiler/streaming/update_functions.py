"""Makes the function that updates a weight, or some of its rows, in a store. All weights of an optimizer share it.

A graph that spells out each update has about 20 nodes for each weight, and TensorFlow keeps several copies of each.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import tensorflow as tf

from cerebras_tensorflow.compiler.nodes.store_calls import INT64
from cerebras_tensorflow.graph.nodes import FunctionDef, NodeDef
from cerebras_tensorflow.graph.program import PUT_TOKEN, TAKE_TOKEN, UPDATE_FUNCTION

_INT32 = tf.int32.as_datatype_enum
# TensorFlow makes a new name for each variable of this name, each time that its VarHandleOp runs.
_ANONYMOUS = b"cd2c89b7-88b7-44c8-ad83-06c2a9158347"
_AS_WRITTEN = tf.compat.v1.ConfigProto()
_AS_WRITTEN.graph_options.rewrite_options.disable_meta_optimizer = True


def update_function(node: NodeDef, kept: Sequence[bool], dtype: int) -> FunctionDef:
    """Return the function that runs an optimizer op on some rows of variables, and stores the results.

    Its arguments are: the numbers of the store's calls (see `FETCH_TOKEN`) for the variables that are fetched, the same
    for all variables, where the rows begin, their shape, the whole value of each variable that is not fetched, and the
    op's inputs after the variables.

    Args:
        node: The optimizer op.
        kept: For each variable that it updates, whether the graph has its value, so that it is not fetched.
        dtype: The type of the variables and of all further inputs, as TensorFlow's number.
    """
    attributes = {name: node.attr[name] for name in sorted(node.attr) if not name.startswith("_")}
    digest = hashlib.blake2s(bytes(kept), digest_size=8)
    for name, value in attributes.items():
        digest.update(name.encode() + value.SerializeToString(deterministic=True))
    num_inputs = sum(not text.startswith("^") for text in node.input)
    values = [f"value_{number}" for number, is_kept in enumerate(kept) if is_kept]
    others = [f"other_{number}" for number in range(len(kept), num_inputs)]
    function = FunctionDef()
    signature = function.signature
    signature.name = f"{UPDATE_FUNCTION}{node.op}_{digest.hexdigest()}"
    signature.is_stateful = True
    for name in ("fetched", "stored", "begin", "size"):
        signature.input_arg.add(name=name, type=INT64)
    for name in (*values, *others):
        signature.input_arg.add(name=name, type=dtype)
    signature.output_arg.add(name="done", type=_INT32)

    def add(name: str, op: str, inputs: Sequence[str], **types: int) -> NodeDef:
        new = function.node_def.add(name=name, op=op, input=inputs)
        for attribute, number in types.items():
            new.attr[attribute].type = number
        return new

    num_fetched = len(kept) - len(values)
    if num_fetched:
        _call(add("take", "PyFunc", ["fetched"]), TAKE_TOKEN, [INT64], [dtype] * num_fetched)
    fetched = iter(range(num_fetched))
    handles = [f"variable_{number}:resource:0" for number in range(len(kept))]
    for number, handle in enumerate(handles):
        if kept[number]:
            add(f"rows_{number}", "Slice", [f"value_{number}", "begin", "size"], T=dtype, Index=INT64)
        rows = f"rows_{number}:output:0" if kept[number] else f"take:output:{next(fetched)}"
        variable = add(f"variable_{number}", "VarHandleOp", [], dtype=dtype)
        variable.attr["shape"].shape.unknown_rank = True
        variable.attr["shared_name"].s = _ANONYMOUS
        add(f"begin_{number}", "AssignVariableOp", [handle, rows], dtype=dtype)
    apply = add("apply", node.op, [*handles, *others, *(f"^begin_{number}" for number in range(len(kept)))])
    for name, value in attributes.items():
        apply.attr[name].CopyFrom(value)
    for number, handle in enumerate(handles):
        add(f"result_{number}", "ReadVariableOp", [handle, "^apply"], dtype=dtype)
    put = add("put", "PyFunc", ["stored", *(f"result_{number}:value:0" for number in range(len(kept)))])
    _call(put, PUT_TOKEN, [INT64, *[dtype] * len(kept)], [_INT32])
    for number, handle in enumerate(handles):
        add(f"end_{number}", "DestroyResourceOp", [handle, "^put"])
    add("done", "Identity", ["put:output:0", *(f"^end_{number}" for number in range(len(kept)))], T=_INT32)
    function.ret["done"] = "done:output:0"
    return _named_for_traces(function)


def _named_for_traces(function: FunctionDef) -> FunctionDef:
    """Return the function; its nodes get names that no other node of a step has, as traces lack the call's name."""
    names = {node.name for node in function.node_def}
    for node in function.node_def:
        node.name = UPDATE_FUNCTION + node.name
        for place, text in enumerate(node.input):
            start, name = ("^", text[1:]) if text.startswith("^") else ("", text)
            if name.partition(":")[0] in names:
                node.input[place] = f"{start}{UPDATE_FUNCTION}{name}"
    for name, text in function.ret.items():
        function.ret[name] = UPDATE_FUNCTION + text
    return function


def _call(node: NodeDef, token: str, inputs: Sequence[int], outputs: Sequence[int]) -> None:
    """Set the attributes of a call into the store."""
    node.attr["token"].s = token.encode()
    node.attr["Tin"].list.type.extend(inputs)
    node.attr["Tout"].list.type.extend(outputs)


def call_of(function: FunctionDef, name: str, inputs: Sequence[str], control: Sequence[str]) -> NodeDef:
    """Return a call of a function with one result. TensorFlow runs its ops as written."""
    node = NodeDef(name=name, op="StatefulPartitionedCall", input=[*inputs, *control])
    node.attr["f"].func.name = function.signature.name
    node.attr["Tin"].list.type.extend(argument.type for argument in function.signature.input_arg)
    node.attr["Tout"].list.type.append(function.signature.output_arg[0].type)
    node.attr["config_proto"].s = _AS_WRITTEN.SerializeToString()
    return node
