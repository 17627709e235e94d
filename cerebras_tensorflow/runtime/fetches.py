"""The Program's graph, addressed by what the caller knows: tensors, ops and names of the graph that model_fn built."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from cerebras_tensorflow.errors import CompileError
from cerebras_tensorflow.graph.nodes import GraphDef, NodeDef, parse_input, prune
from cerebras_tensorflow.graph.program import Program, read_name

_BATCH = "cs_input/"  # scope of the placeholders that take the batch


class FetchedGraph:
    """A Program's graph that runs what is asked for by the original graph's names.

    An op that the Program lacks, such as one that a hook made after the step was compiled, is added when it is fetched.

    Args:
        program: Its names of variables are used.
        graph_def: The Program's graph, bound to its weight store.
        original: The graph that model_fn built; stays the caller's.
        streamed: Names of the variables that live in the store.

    Attributes:
        graph: The Program's graph.
    """

    def __init__(self, program: Program, graph_def: GraphDef, original: tf.Graph, streamed: frozenset[str]) -> None:
        self.graph = tf.Graph()
        with self.graph.as_default():
            tf.graph_util.import_graph_def(graph_def, name="")
        self._original = original
        self._resident = {spec.name: index for index, spec in enumerate(program.variables)}
        self._streamed = streamed
        self._needs_batch: dict[frozenset[str], bool] = {}

    def operation(self, name: str | None) -> Any:
        """Return an op of the Program's graph."""
        return self.graph.get_operation_by_name(str(name))

    def tensor(self, name: str) -> Any:
        """Return a tensor of the Program's graph."""
        return self.graph.get_tensor_by_name(name)

    def mapped(self, fetches: Any) -> Any:
        """Return the same structure with the Program's tensors and ops of the same names.

        Raises:
            CompileError: If a fetch needs a weight that is in the store.
            TypeError: If a fetch is None.
        """
        if isinstance(fetches, dict):
            mapped = copy.copy(fetches)  # of the same type, which may need more than its items
            mapped.update((key, self.mapped(value)) for key, value in fetches.items())
            return mapped
        if isinstance(fetches, tuple) and hasattr(fetches, "_fields"):
            return type(fetches)(*(self.mapped(value) for value in fetches))
        if isinstance(fetches, (list, tuple)):
            return type(fetches)(self.mapped(value) for value in fetches)
        if fetches is None:
            raise TypeError("Fetch argument None has invalid type <class 'NoneType'>")
        if isinstance(fetches, tf.SparseTensor):
            return tf.SparseTensor(*(self.mapped(p) for p in (fetches.indices, fetches.values, fetches.dense_shape)))
        if isinstance(fetches, tf.IndexedSlices):
            return tf.IndexedSlices(self.mapped(fetches.values), self.mapped(fetches.indices))
        return self._element(fetches)

    def needs_batch(self, names: frozenset[str]) -> bool:
        """Whether ops of these names depend on the batch."""
        if names not in self._needs_batch:
            self._needs_batch[names] = any(
                self.operation(name).type == "Placeholder" and name.startswith(_BATCH)
                for name in _ancestors(self.graph, names)
            )
        return self._needs_batch[names]

    def _element(self, fetch: Any) -> Any:
        """Return the Program's tensor or op for one fetch."""
        element = self._original.as_graph_element(fetch)
        name = element.name if isinstance(element, tf.Operation) else element.op.name
        if isinstance(element, tf.Tensor) and element.dtype == tf.resource and name in self._resident:
            # A variable by its name, as when that was its value: TensorFlow 2.16 to 2.18 cannot fetch the handle.
            return self.tensor(f"{read_name(self._resident[name])}:0")
        if not has_node(self.graph, name):
            self._extend(name)
        return self.graph.as_graph_element(element.name)

    def _extend(self, name: str) -> None:
        """Add an op of the original graph to the Program, with everything that it needs.

        Raises:
            CompileError: If it needs a weight that is in the store.
        """
        wanted = prune(self._original.as_graph_def(), [name])
        missing = [node for node in wanted.node if not has_node(self.graph, node.name)]
        for node in missing:
            self._refuse_streamed(node, name)
        new = {node.name for node in missing}
        known: dict[str, Any] = {}
        for node in missing:
            for endpoint in map(parse_input, node.input):
                if endpoint.node in new:
                    continue
                operation = self.operation(endpoint.node)
                known[str(endpoint)] = operation if endpoint.is_control else operation.outputs[endpoint.port]
        part = GraphDef(versions=wanted.versions, library=wanted.library)
        part.node.extend(missing)
        with self.graph.as_default():
            tf.graph_util.import_graph_def(part, input_map=known, name="")

    def _refuse_streamed(self, node: NodeDef, fetch: str) -> None:
        """Raise CompileError if a node takes a streamed variable."""
        taken = [text for text in node.input if text in self._streamed]
        if not taken and node.op == "VarHandleOp" and node.attr["shared_name"].s.decode() in self._streamed:
            taken = [node.name]
        if taken:
            raise CompileError(
                f"{fetch} needs {taken[0]}, which is streamed and not in memory between its uses. "
                "Read it from a checkpoint, or raise min_stream_bytes to keep it resident."
            )


def has_node(graph: tf.Graph, name: str) -> bool:
    """Whether a graph has an op of that name."""
    try:
        graph.get_operation_by_name(name)
    except KeyError:
        return False
    return True


def op_names(fetches: Any) -> Iterator[str]:
    """Yield the names of the ops that a structure of tensors and ops consists of."""
    if isinstance(fetches, dict):
        for value in fetches.values():
            yield from op_names(value)
    elif isinstance(fetches, (list, tuple)):
        for value in fetches:
            yield from op_names(value)
    elif isinstance(fetches, tf.Operation):
        yield fetches.name
    elif isinstance(fetches, tf.Tensor):
        yield fetches.op.name
    else:
        yield from op_names([part for part in (fetches.values, fetches.indices) if part is not None])


def _ancestors(graph: tf.Graph, names: frozenset[str]) -> set[str]:
    """Return the names of the given ops and of all ops that they need."""
    needed: set[str] = set()
    pending = [graph.get_operation_by_name(name) for name in names]
    while pending:
        operation = pending.pop()
        if operation.name not in needed:
            needed.add(operation.name)
            pending.extend(tensor.op for tensor in operation.inputs)
            pending.extend(operation.control_inputs)
    return needed
