"""Finds the caller's tensors, ops and names (of the graph that model_fn built) in the Program's graph."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Protocol

import tensorflow as tf

from cerebras_tensorflow.graph.nodes import GraphDef, parse_input, prune
from cerebras_tensorflow.graph.program import Program, read_name
from cerebras_tensorflow.graph.sums import fix_order_of_sums
from cerebras_tensorflow.runtime.stored_ops import call_store

_SHARED_OPS = ("VarHandleOp", "Const", "NoOp")  # ops of the Program that an op beside the step may depend on
_BATCH = "cs_input/"  # scope of the placeholders that take the batch


class InputSession(Protocol):
    """The input of a run. It has its own graph and session."""

    graph: tf.Graph

    @property
    def session(self) -> Any:
        """The TensorFlow session."""

    def placeholder_of(self, tensor: Any) -> str | None:
        """Return the name of the step's placeholder for a tensor of the batch. None for other tensors."""


class FetchedGraph:
    """A Program's graph whose tensors and ops are fetched by the original graph's names.

    A fetched op that the Program lacks is added. A hook may have made it after the step was compiled, for example.
    Such ops read streamed variables from the store and assign them there.

    Args:
        program: The Program, for the names of its variables.
        graph_def: The Program's graph, bound to its weight store.
        original: The graph that model_fn built. It is not changed.
        streamed: Names of the variables in the store, by index.
        bind: Connects the store calls of a graph to the store.
        inputs: The input. A tensor of the batch in its graph stands for the step's placeholder.

    Attributes:
        graph: The Program's graph.
    """

    def __init__(
        self,
        program: Program,
        graph_def: GraphDef,
        original: tf.Graph,
        streamed: Sequence[str] = (),
        bind: Callable[[GraphDef], GraphDef] = lambda graph_def: graph_def,
        inputs: InputSession | None = None,
    ) -> None:
        self._inputs = inputs
        self.graph = tf.Graph()
        with self.graph.as_default():
            tf.graph_util.import_graph_def(graph_def, name="")
        self._original = original
        self._resident = {spec.name: index for index, spec in enumerate(program.variables)}
        self._streamed = {name: index for index, name in enumerate(streamed)}
        self._specs = {spec.name: spec for spec in program.streamed}
        self._bind = bind
        self._added: set[str] = set()
        self._assigns: dict[frozenset[str], bool] = {}
        self._beside: dict[str, bool] = {}
        self._needs_batch: dict[frozenset[str], bool] = {}

    def operation(self, name: str | None) -> Any:
        """Return an op of the Program's graph."""
        return self.graph.get_operation_by_name(str(name))

    def tensor(self, name: str) -> Any:
        """Return a tensor of the Program's graph."""
        return self.graph.get_tensor_by_name(name)

    def mapped(self, fetches: Any) -> Any:
        """Return fetches with each tensor and op replaced by the Program's one of the same name.

        Raises:
            CompileError: If an op needs a streamed variable for something that the store cannot do.
            TypeError: If a fetch is None.
        """
        if isinstance(fetches, dict):
            mapped = copy.copy(fetches)  # keeps the type: its constructor may take other arguments than a dict's
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

    def feed_key(self, key: Any) -> Any:
        """Return the key under which to feed a tensor to the Program.

        Args:
            key: A tensor of the original graph, or its name.
        """
        if isinstance(key, tf.SparseTensor):
            return self.mapped(key)
        key = self._of_step(key)
        name = key if isinstance(key, str) else key.name
        if not has_node(self.graph, name.split(":")[0]):
            self._extend(name.split(":")[0])
        return name

    def is_beside_the_step(self, tensor: Any) -> bool:
        """Whether a tensor was added to the Program and depends on nothing in the step but its variables.

        TensorFlow does not order such reads and the step's writes.
        """
        name = tensor.op.name
        if name not in self._added:
            return False
        if name not in self._beside:
            self._beside[name] = all(
                other.name in self._added or other.type in _SHARED_OPS for other in ancestors([tensor.op])
            )
        return self._beside[name]

    def needs_batch(self, names: frozenset[str]) -> bool:
        """Whether any op of these names depends on the batch."""
        if names not in self._needs_batch:
            self._needs_batch[names] = any(
                operation.type == "Placeholder" and operation.name.startswith(_BATCH)
                for operation in ancestors(map(self.operation, names))
            )
        return self._needs_batch[names]

    def may_assign(self, names: frozenset[str], variable: str) -> bool:
        """Whether any op of these names, or any op it depends on, assigns a variable."""
        key = names | {variable}
        if key not in self._assigns:
            self._assigns[key] = any(
                operation.type.startswith("Assign") and operation.inputs[0].op.name == variable
                for operation in ancestors(map(self.operation, names))
            )
        return self._assigns[key]

    def _element(self, fetch: Any) -> Any:
        """Return the Program's tensor or op for one fetch."""
        element = self._original.as_graph_element(self._of_step(fetch))
        name = element.name if isinstance(element, tf.Operation) else element.op.name
        if isinstance(element, tf.Tensor) and element.dtype == tf.resource and name in self._resident:
            # The name of a variable fetches its value. TensorFlow 2.16 to 2.18 cannot fetch the handle.
            return self.tensor(f"{read_name(self._resident[name])}:0")
        if not has_node(self.graph, name):
            self._extend(name)
        return self.graph.as_graph_element(element.name)

    def _of_step(self, value: Any) -> Any:
        """Return a fetch or feed. A tensor of the batch in the input's graph becomes the step's placeholder."""
        if self._inputs is None or not isinstance(value, tf.Tensor) or value.graph is not self._inputs.graph:
            return value
        name = self._inputs.placeholder_of(value)
        return value if name is None else self._original.get_tensor_by_name(name)

    def _extend(self, name: str) -> None:
        """Add an op of the original graph to the Program, with everything that it depends on.

        Raises:
            CompileError: If it needs a streamed variable for something that the store cannot do.
        """
        # The step's sums and functions went through the same pass. One function must not exist in two versions.
        wanted, _ = fix_order_of_sums(prune(self._original.as_graph_def(), [name]))
        missing = [node for node in wanted.node if not has_node(self.graph, node.name)]
        missing = call_store(missing, self._streamed, self._specs)
        new = {node.name for node in missing}
        known: dict[str, Any] = {}
        for node in missing:
            for endpoint in map(parse_input, node.input):
                if endpoint.node in new:
                    continue
                operation = self.operation(endpoint.node)
                known[str(endpoint)] = (
                    self._after(operation) if endpoint.is_control else operation.outputs[endpoint.port]
                )
        part = GraphDef(versions=wanted.versions, library=wanted.library)
        part.node.extend(missing)
        with self.graph.as_default():
            tf.graph_util.import_graph_def(self._bind(part), input_map=known, name="")
        self._added |= new

    def _after(self, operation: Any) -> Any:
        """Return a tensor that exists after an op ran: import_graph_def maps a control input only to a tensor."""
        if operation.outputs:
            return operation.outputs[0]
        with self.graph.as_default(), tf.control_dependencies([operation]):
            return tf.constant(0, name=f"cs_after/{operation.name}")


def has_node(graph: tf.Graph, name: str) -> bool:
    """Whether a graph has an op of that name."""
    try:
        graph.get_operation_by_name(name)
    except KeyError:
        return False
    return True


def leaves(fetches: Any) -> Iterator[Any]:
    """Yield the tensors and ops in a structure."""
    if isinstance(fetches, dict):
        for value in fetches.values():
            yield from leaves(value)
    elif isinstance(fetches, (list, tuple)):
        for value in fetches:
            yield from leaves(value)
    elif isinstance(fetches, (tf.Operation, tf.Tensor)):
        yield fetches
    elif isinstance(fetches, tf.SparseTensor):
        yield from (fetches.indices, fetches.values, fetches.dense_shape)
    else:
        yield from leaves([part for part in (fetches.values, fetches.indices) if part is not None])


def op_names(fetches: Any) -> Iterator[str]:
    """Yield the names of the ops in a structure of tensors and ops."""
    for leaf in leaves(fetches):
        yield leaf.name if isinstance(leaf, tf.Operation) else leaf.op.name


def ancestors(operations: Iterable[Any]) -> list[Any]:
    """Return ops and all ops that they depend on."""
    needed: dict[str, Any] = {}
    pending = list(operations)
    while pending:
        operation = pending.pop()
        if operation.name not in needed:
            needed[operation.name] = operation
            pending.extend(tensor.op for tensor in operation.inputs)
            pending.extend(operation.control_inputs)
    return list(needed.values())
