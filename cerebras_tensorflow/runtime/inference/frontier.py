"""Which tensors of an evaluation or a prediction another CSX can compute for a batch.

A metric is updated one batch after the other, so only one CSX updates it: the bits then do not depend on the number of
CSX. All that comes before the updates (the model) depends on nothing but the batch and the weights, so any CSX can
compute it. The frontier is the tensors on the border between the two.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from cerebras_tensorflow.graph.function_calls import called_functions
from cerebras_tensorflow.graph.micro_batches import BATCH
from cerebras_tensorflow.graph.nodes import FunctionDef, GraphDef
from cerebras_tensorflow.graph.program import SLICE_STORE_TOKEN, STORE_TOKEN, Program
from cerebras_tensorflow.graph.variables import READ_OPS
from cerebras_tensorflow.runtime.fetches import ancestors
from cerebras_tensorflow.tf_private import op_definition

_OWN_CALLS = b"cs_"  # start of the tokens of our own calls
_STORES = (STORE_TOKEN.encode(), SLICE_STORE_TOKEN.encode())
# Marked stateful, but their results depend only on their inputs. A static table does not change after its setup.
_HARMLESS = READ_OPS | {
    "VarHandleOp", "VarIsInitializedOp", "Assert", "Placeholder", "HashTableV2", "LookupTableFindV2"
}  # fmt: skip
_BACK = ("NextIteration", "RefNextIteration")
_DEEPER = {"Switch": 1, "RefSwitch": 1, "Enter": 1, "RefEnter": 1, "Exit": -2, "RefExit": -2}


@dataclass(frozen=True)
class Frontier:
    """What other CSX compute for one set of fetches.

    Attributes:
        tensors: Names of the tensors.
        reads: Names of the resident variables that they depend on.
        writes: Names of the resident variables that the fetches write.
    """

    tensors: tuple[str, ...]
    reads: frozenset[str]
    writes: frozenset[str]


class Frontiers:
    """Finds frontiers in the graph of a Program.

    Args:
        program: The Program.
    """

    def __init__(self, program: Program) -> None:
        graph_def = program.graph_def
        self._functions: Mapping[str, FunctionDef] = {one.signature.name: one for one in graph_def.library.function}
        self._definitions = {node.name: node for node in graph_def.node}
        self._pure: dict[str, bool] = {}  # by name of a function
        self._writes_weights = _writes_weights(graph_def, len(program.streamed))

    def of(self, fetched: Iterable[Any]) -> Frontier:
        """Return the frontier of a run.

        Args:
            fetched: Tensors and ops of the session's graph.
        """
        fetched = list(fetched)
        order = _in_order(ancestors(one if isinstance(one, tf.Operation) else one.op for one in fetched))
        has_state = {one.name for one in order if not self._is_pure(one)}
        written = {_root(value) for one in order if one.name in has_state for value in one.inputs if _is_handle(value)}
        if self._writes_weights:
            return Frontier((), frozenset(), frozenset(written))
        later = _later(order, has_state, written)
        of_batch = _depending(order, {one.name for one in order if one.type == "Placeholder" and _is_batch(one)})
        depth = _depths(order)
        here = set(later)
        tensors: dict[str, None] = {}

        def take(value: Any) -> bool:
            """Add a tensor to the frontier. False: the op that makes it must run here."""
            if value.op.name in here or value.op.name not in of_batch or _is_batch(value.op):
                return True
            if depth[value.op.name] > 0 or not value.dtype.is_numpy_compatible or _is_handle(value):
                return False
            tensors[value.name] = None
            return True

        for one in reversed(order):
            if one.name in here:
                here |= {value.op.name for value in one.inputs if not take(value)}
        for one in fetched:
            if isinstance(one, tf.Tensor):
                take(one)
        graph = order[0].graph if order else None
        needed = ancestors(graph.get_tensor_by_name(name).op for name in tensors) if graph is not None else []
        reads = {one.name for one in needed if one.type == "VarHandleOp"}
        return Frontier(tuple(tensors), frozenset(reads), frozenset(written))

    def _is_pure(self, operation: Any) -> bool:
        """Whether the result of an op depends only on its inputs and on variables, and it changes nothing."""
        definition = self._definitions.get(operation.name)
        if operation.type == "PyFunc":
            return definition is not None and definition.attr["token"].s.startswith(_OWN_CALLS)
        node = definition if definition is not None else operation.node_def
        called = called_functions(node, self._functions)
        if called:
            return all(map(self._is_pure_function, called))
        return _has_no_state(operation.type)

    def _is_pure_function(self, name: str) -> bool:
        if name not in self._pure:
            self._pure[name] = True  # a function that calls itself
            self._pure[name] = all(
                all(map(self._is_pure_function, called_functions(node, self._functions)))
                if called_functions(node, self._functions)
                else _has_no_state(node.op) or (node.op == "PyFunc" and node.attr["token"].s.startswith(_OWN_CALLS))
                for node in self._functions[name].node_def
            )
        return self._pure[name]


def _has_no_state(op: str) -> bool:
    definition = op_definition(op)
    return op in _HARMLESS or (definition is not None and not definition.is_stateful)


def _writes_weights(graph_def: GraphDef, num_streamed: int) -> bool:
    """Whether a graph writes a streamed weight. Other writes to the store are of spilled values."""
    values = {node.name: node for node in graph_def.node if node.op == "Const"}
    return any(
        int(tf.make_ndarray(values[node.input[0]].attr["value"].tensor)) < num_streamed
        for node in graph_def.node
        if node.op == "PyFunc" and node.attr["token"].s in _STORES
    )


def _is_batch(operation: Any) -> bool:
    return bool(operation.name.startswith(BATCH))


def _is_handle(value: Any) -> bool:
    return value.dtype in (tf.resource, tf.variant)


def _root(value: Any) -> str:
    """Return the name of the variable of a handle, which may have passed a branch or a loop."""
    operation = value.op
    while operation.type != "VarHandleOp" and operation.inputs:
        operation = operation.inputs[0].op
    return str(operation.name)


def _in_order(operations: Sequence[Any]) -> list[Any]:
    """Return ops so that each comes after those it depends on; the back edges of loops do not count."""
    known = {one.name: one for one in operations}
    done: dict[str, Any] = {}
    for root in operations:
        pending = [(root, False)]
        while pending:
            one, is_ready = pending.pop()
            if one.name in done:
                continue
            if is_ready:
                done[one.name] = one
                continue
            pending.append((one, True))
            pending += [(known[name], False) for name in _before(one) if name not in done]
    return list(done.values())


def _before(operation: Any) -> list[str]:
    data = [value.op for value in operation.inputs]
    names = [one.name for one in (*data, *operation.control_inputs) if one.type not in _BACK]
    return names


def _later(order: Sequence[Any], has_state: Collection[str], written: Collection[str]) -> set[str]:
    """Return the names of the ops with state, the reads of written variables, and all that depends on these."""
    own = {
        one.name
        for one in order
        if one.name in has_state or any(_is_handle(value) and _root(value) in written for value in one.inputs)
    }
    return _depending(order, own)


def _depending(order: Sequence[Any], sources: Collection[str]) -> set[str]:
    """Return the names of some ops and of all that depend on them."""
    reached = set(sources)
    for one in order:
        if any(name in reached for name in _before(one)):
            reached.add(one.name)
    return reached


def _depths(order: Sequence[Any]) -> dict[str, int]:
    """Return how many branches and loops each op is in. Only a tensor outside of them can be fed."""
    depths: dict[str, int] = {}
    for one in order:
        inner = max((depths[name] for name in _before(one)), default=0)
        joins = one.type in ("Merge", "RefMerge") and all(value.op.type not in _BACK for value in one.inputs)
        depths[one.name] = max(0, inner + (-1 if joins else _DEEPER.get(one.type, 0)))
    return depths
