"""Finds the caller's tensors, ops and names (of the graph that model_fn built) in the Program's graph."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from cerebras_tensorflow import tf_private
from cerebras_tensorflow.graph.function_calls import called_functions, functions_that
from cerebras_tensorflow.graph.micro_batches import BATCH, CARRIED, TOTAL, Carried
from cerebras_tensorflow.graph.nodes import GraphDef, NodeDef, parse_input, prune
from cerebras_tensorflow.graph.program import Program, read_name
from cerebras_tensorflow.graph.scatters import add_rows_in_order
from cerebras_tensorflow.graph.sums import fix_order_of_sums
from cerebras_tensorflow.graph.variables import may_write
from cerebras_tensorflow.runtime.added_ops import AddedOps
from cerebras_tensorflow.runtime.stored_ops import assigned_weights, call_store

_PYTHON = ("PyFunc", "EagerPyFunc")  # may change variables
_SHARED_OPS = ("VarHandleOp", "Const", "NoOp")  # ops of the Program that an op beside the step may depend on


class FetchedGraph:
    """A Program's graph whose tensors and ops are fetched by the original graph's names.

    A fetched op that the Program lacks is added. A hook may have made it after the step was compiled, for example.
    Such ops read streamed variables from the store and assign them there.

    The class has more than 20 methods: each answers one question about names or ops, and they share the same maps.

    Args:
        program: The Program, for the names of its variables.
        graph_def: The Program's graph, bound to its weight store.
        original: The graph that model_fn built. It is not changed.
        streamed: Names of the variables in the store, by index.
        bind: Connects the store calls of a graph to the store.

    Attributes:
        graph: The Program's graph.
        extensions: What was added to it, in order.
    """

    def __init__(
        self,
        program: Program,
        graph_def: GraphDef,
        original: tf.Graph,
        streamed: Sequence[str] = (),
        bind: Callable[[GraphDef], GraphDef] = lambda graph_def: graph_def,
    ) -> None:
        self.graph = tf.Graph()
        with self.graph.as_default():
            tf_private.import_nodes(graph_def)
        self.extensions: list[GraphDef] = []
        self._original = original
        self._resident = {spec.name: index for index, spec in enumerate(program.variables)}
        self._streamed = {name: index for index, name in enumerate(streamed)}
        self._specs = {spec.name: spec for spec in program.streamed}
        self._bind = bind
        self._added: set[str] = set()
        self._assigned: dict[str, str] = {}  # added op -> the streamed weight that it assigns
        plan = program.micro_batches
        self._placed: AddedOps | None = None
        if plan is not None:
            self._placed = AddedOps(
                program, original, lambda name: self._has(name) and self.needs_batch(frozenset([name]))
            )
        self._operations: dict[str, Any] = {}
        self._elements: dict[int, tuple[Any, Any]] = {}  # id of a fetch -> the fetch, its element
        self._assigns: dict[frozenset[str], bool] = {}
        self._beside: dict[str, bool] = {}
        self._added_writes: set[str] = set()
        self._library = {function.signature.name: function for function in graph_def.library.function}
        self._writing_functions = functions_that(_writes, self._library)
        self._writing: dict[tuple[frozenset[str], bool], bool] = {}
        self._placeholders: dict[frozenset[str], frozenset[str]] = {}

    @property
    def carried(self) -> Sequence[Carried]:
        """The values that added ops take from the micro-batches of a step. The list grows when ops are added."""
        return self._placed.carried if self._placed is not None else ()

    def operation(self, name: str | None) -> Any:
        """Return the op of the Program's graph for a name of the Program or of the original graph."""
        return self._operations.get(str(name)) or self.graph.get_operation_by_name(str(name))

    def tensor(self, name: str) -> Any:
        """Return the tensor of the Program's graph for a name of the Program or of the original graph."""
        operation, _, port = name.rpartition(":")
        return self.operation(operation).outputs[int(port)]

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
        name = key if isinstance(key, str) else key.name
        if not self._has(name.split(":")[0]):
            self._extend(name.split(":")[0])
        return self.tensor(name).name

    def is_beside_the_step(self, tensor: Any) -> bool:
        """Whether a tensor was added to the Program and depends on nothing in the step but its variables.

        TensorFlow does not order such reads and the step's writes.
        """
        name = tensor.op.name
        if name not in self._added:
            return False
        if name not in self._beside:
            self._beside[name] = all(
                (other.name in self._added and not other.name.startswith((TOTAL, CARRIED))) or other.type in _SHARED_OPS
                for other in ancestors([tensor.op])
            )
        return self._beside[name]

    def needs_batch(self, names: frozenset[str]) -> bool:
        """Whether any op of these names depends on the batch."""
        return any(name.startswith(BATCH) for name in self.placeholders(names))

    def placeholders(self, names: frozenset[str]) -> frozenset[str]:
        """Return the names of the placeholders that the named ops depend on."""
        if names not in self._placeholders:
            self._placeholders[names] = frozenset(
                operation.name for operation in ancestors(map(self.operation, names)) if operation.type == "Placeholder"
            )
        return self._placeholders[names]

    def may_assign(self, names: frozenset[str], variable: str) -> bool:
        """Whether any op of these names, or any op it depends on, assigns a variable."""
        key = names | {variable}
        if key not in self._assigns:
            self._assigns[key] = any(
                operation.type.startswith("Assign") and operation.inputs[0].op.name == variable
                for operation in ancestors(map(self.operation, names))
            )
        return self._assigns[key]

    def may_write(self, names: frozenset[str], is_step: bool) -> bool:
        """Whether a run may change a variable in a way that is not part of the step.

        Args:
            names: Names of the fetched ops.
            is_step: Whether the run is a training step.
        """
        key = (names, is_step)
        if key not in self._writing:
            self._writing[key] = any(
                operation.name in self._added_writes
                if operation.name in self._added or is_step
                else self._may_write(operation.node_def)
                for operation in ancestors(map(self.operation, names))
            )
        return self._writing[key]

    def assigned_weights(self, fetched: Iterable[Any]) -> frozenset[str]:
        """Return the names of the streamed weights that some tensors and ops assign by added ops."""
        needed = ancestors(one if isinstance(one, tf.Operation) else one.op for one in fetched)
        return frozenset(self._assigned[one.name] for one in needed if one.name in self._assigned)

    def add(self, extension: GraphDef) -> None:
        """Add what another session of the same Program has added."""
        library = GraphDef(versions=extension.versions, library=extension.library)
        self._import(list(extension.node), library)

    def _element(self, fetch: Any) -> Any:
        """Return the Program's tensor or op for one fetch."""
        if isinstance(fetch, str):
            return self._new_element(fetch)
        if id(fetch) not in self._elements:
            self._elements[id(fetch)] = (fetch, self._new_element(fetch))
        return self._elements[id(fetch)][1]

    def _new_element(self, fetch: Any) -> Any:
        element = self._original.as_graph_element(fetch)
        name = element.name if isinstance(element, tf.Operation) else element.op.name
        if isinstance(element, tf.Tensor) and element.dtype == tf.resource and name in self._resident:
            # The name of a variable fetches its value. TensorFlow 2.16 to 2.18 cannot fetch the handle.
            return self.tensor(f"{read_name(self._resident[name])}:0")
        total = self._placed.total_of(name) if self._placed is not None and isinstance(element, tf.Tensor) else None
        if total is not None:
            self._read_total(name, total.node)
            return self.tensor(f"{total.node}:0")
        if not self._has(name):
            self._extend(name)
        return self.operation(name) if isinstance(element, tf.Operation) else self.tensor(element.name)

    def _read_total(self, mark: str, name: str) -> None:
        """Add the op that reads the total of a gradient, if it is in the store."""
        if self._placed is not None and not self._has(name):
            self._import([self._placed.read_of_total(mark, name.rsplit("/", 1)[0])], GraphDef())

    def _has(self, name: str) -> bool:
        return name in self._operations or has_node(self.graph, name)

    def _extend(self, name: str) -> None:
        """Add an op of the original graph to the Program, with everything that it depends on.

        Raises:
            CompileError: If it needs a streamed variable for something that the store cannot do.
        """
        # The step's functions went through the same passes. Keep one version of each function.
        wanted = add_rows_in_order(fix_order_of_sums(prune(self._original.as_graph_def(), [name]))[0], {})
        missing = [node for node in wanted.node if not self._has(node.name)]
        if self._placed is not None:
            missing = self._placed.placed(missing)
            for text in (text for node in missing for text in node.input):
                gradient = self._placed.gradient_read_by(text)
                if gradient is not None:
                    self._read_total(gradient, text)
        self._import(missing, wanted)

    def _import(self, missing: Sequence[NodeDef], wanted: GraphDef) -> None:
        """Add nodes to the Program's graph.

        Args:
            missing: The nodes.
            wanted: A graph with the functions that they call.
        """
        extension = GraphDef(versions=wanted.versions, library=wanted.library)
        extension.node.extend(missing)
        self.extensions.append(extension)
        new_functions = {function.signature.name: function for function in wanted.library.function}
        if not new_functions.keys() <= self._library.keys():
            self._library |= new_functions
            self._writing_functions = functions_that(_writes, self._library)
        writes = {node.name for node in missing if self._may_write(node)}
        missing = call_store(list(missing), self._streamed, self._specs)
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
        names = [node.name for node in missing]
        with self.graph.as_default():
            # TensorFlow changes the name of an op that equals a name scope of the graph.
            made = tf.graph_util.import_graph_def(self._bind(part), known, return_elements=names, name="")
        self._operations.update(zip(names, made, strict=True))
        self._added_writes |= {operation.name for name, operation in zip(names, made, strict=True) if name in writes}
        self._added |= {operation.name for operation in made}
        weights = assigned_weights(missing)
        order = list(self._streamed)
        self._assigned |= {
            one.name: order[weights[name]] for name, one in zip(names, made, strict=True) if name in weights
        }

    def _may_write(self, node: NodeDef) -> bool:
        return _writes(node.op) or not self._writing_functions.isdisjoint(called_functions(node, self._library))

    def _after(self, operation: Any) -> Any:
        """Return a tensor that exists after an op ran: import_graph_def maps a control input only to a tensor."""
        if operation.outputs:
            return operation.outputs[0]
        with self.graph.as_default(), tf.control_dependencies([operation]):
            return tf.constant(0, name=f"cs_after/{operation.name}")


def _writes(op: str) -> bool:
    return may_write(op) or op in _PYTHON


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


def with_values(fetches: Any, result: Any, values: Mapping[str, Any]) -> Any:
    """Return the result of a run with some values replaced: scalars for tensors of rank 0, as of all other tensors.

    Session.run returns what was fed for a fetched tensor, and then an array of rank 0.

    Args:
        fetches: A structure of tensors and ops.
        result: What Session.run returned for it.
        values: Name of a tensor -> its value.
    """
    if isinstance(fetches, dict):
        changed = copy.copy(result)
        changed.update((key, with_values(part, result[key], values)) for key, part in fetches.items())
        return changed
    if isinstance(fetches, (list, tuple)):
        parts = [with_values(part, value, values) for part, value in zip(fetches, result, strict=True)]
        return type(result)(*parts) if hasattr(result, "_fields") else type(result)(parts)
    value = values.get(fetches.name, result) if isinstance(fetches, tf.Tensor) else result
    return value[()] if isinstance(value, np.ndarray) and not value.ndim else value


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
