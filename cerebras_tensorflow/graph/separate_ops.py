"""Keeps ops separate that TensorFlow would merge into one op of oneDNN, in some forms of a step only.

When TensorFlow prepares a graph, after every pass of ours, it merges a convolution with its bias and its padding, and
the gradient of a convolution's filter with that of the bias. The merged op has other bits. It also waits for what any
of its ops waits for: with a gate between them the graph has a cycle, and TensorFlow ends the step without running what
is in it.

Source:
    TensorFlow's `mkl_layout_pass.cc`, the lists of ops to merge.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import tensorflow as tf

from cerebras_tensorflow.graph.cost import Output
from cerebras_tensorflow.graph.nodes import Endpoint, GraphDef, NodeDef, NodeTable

_BIAS_GRADIENT, _FILTER_GRADIENT, _GRADIENT_INPUT = "BiasAddGrad", "Conv2DBackpropFilter", 2
_RANK = 4  # of the input and the result of a convolution
_MERGED = {("Conv2D", "BiasAdd"), ("Pad", "Conv2D")}  # an op, and the one that takes its result as its first input


def keep_separate(
    graph_def: GraphDef, outputs: Mapping[str, Sequence[Output]]
) -> tuple[GraphDef, dict[str, Sequence[Output]]]:
    """Return a graph in which an EnsureShape, which passes its input on, separates ops that TensorFlow would merge.

    Args:
        graph_def: The graph. It stays as it is.
        outputs: The outputs of its ops.

    Returns:
        The graph, and the outputs of its ops with those of the new ones.
    """
    if not any(node.op in ("Conv2D", _FILTER_GRADIENT) for node in graph_def.node):
        return graph_def, dict(outputs)
    table = NodeTable(graph_def)
    result = GraphDef()
    result.CopyFrom(graph_def)
    nodes, made = {node.name: node for node in result.node}, dict(outputs)
    for name, source in _to_separate(table):
        new = NodeDef(name=f"{name}/cs_separate", op="EnsureShape", input=[str(source)])
        new.attr["T"].CopyFrom(nodes[name].attr["T"])
        new.attr["shape"].shape.CopyFrom(tf.TensorShape([None] * _RANK).as_proto())
        nodes[name].input[0] = new.name
        result.node.append(new)
        if source.node in outputs:
            made[new.name] = [outputs[source.node][source.port]]
    return result, made


def _to_separate(table: NodeTable) -> Iterator[tuple[str, Endpoint]]:
    """Yield (op, its first input) where an op would be merged with the maker, or with another taker, of the input."""
    for name, node in table.nodes.items():
        if not table.data_inputs(name):
            continue
        source = table.data_inputs(name)[0]
        if (table.nodes[source.node].op, node.op) in _MERGED or (
            node.op == _BIAS_GRADIENT
            and any(
                table.nodes[other].op == _FILTER_GRADIENT and table.data_inputs(other)[_GRADIENT_INPUT] == source
                for other in table.consumers[source.node]
            )
        ):
            yield name, source
