"""Function calls in a graph: which functions a node calls, and how to add arguments to a call."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence

import tensorflow as tf

from cerebras_tensorflow.graph.bodies import control_inputs, data_inputs
from cerebras_tensorflow.graph.nodes import FunctionDef, GraphDef, NodeDef, copied, reachable

CALLS = {
    "PartitionedCall": ("f",),
    "StatefulPartitionedCall": ("f",),
    "If": ("then_branch", "else_branch"),
    "StatelessIf": ("then_branch", "else_branch"),
    "Case": ("branches",),
    "StatelessCase": ("branches",),
    "While": ("cond", "body"),
    "StatelessWhile": ("cond", "body"),
}
"""Ops that pass their inputs to functions -> the attributes that name these functions."""

LOOPS = frozenset({"While", "StatelessWhile"})


def called_functions(node: NodeDef, known: Container[str]) -> list[str]:
    """Return the names of all functions that a node refers to.

    Args:
        node: A node of a graph or a function.
        known: Names of the library's functions. A node whose op is one of them calls it.
    """
    names = [node.op] if node.op in known else []
    for value in node.attr.values():
        if value.HasField("func"):
            names.append(value.func.name)
        names.extend(function.name for function in value.list.func)
    return [name for name in names if name in known]


def is_plain_call(node: NodeDef, known: Container[str]) -> bool:
    """Whether a node passes its inputs to the functions that it calls, so that we can add arguments."""
    return node.op in known or node.op in CALLS


def with_arguments(
    node: NodeDef, arguments: Sequence[str], dtype: int, shapes: Sequence[Sequence[int]], names: Mapping[str, str]
) -> NodeDef:
    """Return a copy of a call that appends arguments and calls other functions.

    Args:
        node: A plain call.
        arguments: Input strings of the new arguments.
        dtype: Their common dtype, as an enum number.
        shapes: The shape of each.
        names: "attribute/function" -> function to call instead. The attribute is "" if the op itself is the function.
    """
    new = copied(node)
    del new.input[:]
    new.input.extend([*data_inputs(node), *arguments, *control_inputs(node)])
    if node.op not in CALLS:
        new.op = names[f"/{node.op}"]
        return new
    types = new.attr["T" if node.op in LOOPS else "Tin"].list.type
    types.extend([dtype] * len(arguments))
    if node.op in LOOPS and new.attr["output_shapes"].list.shape:
        new.attr["output_shapes"].list.shape.extend(tf.TensorShape(shape).as_proto() for shape in shapes)
    for attribute in CALLS[node.op]:
        value = new.attr[attribute]
        for function in [value.func] if value.HasField("func") else value.list.func:
            function.name = names[f"{attribute}/{function.name}"]
    return new


def callees(node: NodeDef) -> Iterator[tuple[str, str]]:
    """Yield (attribute, function) of a plain call; the attribute is "" if the op itself is the function."""
    if node.op not in CALLS:
        yield "", node.op
        return
    for attribute in CALLS[node.op]:
        value = node.attr[attribute]
        for function in [value.func] if value.HasField("func") else value.list.func:
            yield attribute, function.name


def reachable_functions(graph_def: GraphDef) -> dict[str, FunctionDef]:
    """Return the functions that the graph calls, directly or through other functions, by name."""
    library = {function.signature.name: function for function in graph_def.library.function}
    gradients = {gradient.function_name: gradient.gradient_func for gradient in graph_def.library.gradient}
    reached: dict[str, FunctionDef] = {}
    nodes = graph_def.node if library else ()
    pending = [name for node in nodes for name in called_functions(node, library)]
    while pending:
        name = pending.pop()
        if name in reached or name not in library:
            continue
        reached[name] = library[name]
        pending.extend(called for node in library[name].node_def for called in called_functions(node, library))
        if name in gradients:
            pending.append(gradients[name])
    return reached


def functions_with(library: Mapping[str, FunctionDef], own: Iterable[str]) -> set[str]:
    """Return the given functions and all that call one of them, directly or through others.

    Args:
        library: All functions by name.
        own: Names of the given functions.
    """
    callers: dict[str, set[str]] = {}
    for name, function in library.items():
        for node in function.node_def:
            for called in called_functions(node, library):
                callers.setdefault(called, set()).add(name)
    return reachable(callers, own)


def functions_that(does: Callable[[str], bool], library: Mapping[str, FunctionDef]) -> set[str]:
    """Return the functions with an op of some kind, directly or through other functions.

    Args:
        does: Whether an op is of the kind, by its type.
        library: All functions by name.
    """
    return functions_with(
        library, [name for name, one in library.items() if any(does(node.op) for node in one.node_def)]
    )
