"""Adds the ops that hooks made to a step in micro-batches, either to its first part or to its update."""

from __future__ import annotations

from collections.abc import Callable, Collection

import tensorflow as tf

from cerebras_tensorflow.graph.micro_batches import CARRIED, Carried, Gradient, is_mean_over_micro_batches, is_summary
from cerebras_tensorflow.graph.nodes import Endpoint, NodeDef, copied, parse_input
from cerebras_tensorflow.graph.program import Program
from cerebras_tensorflow.graph.variables import may_change_model


class AddedOps:
    """Places added ops. An op that depends only on the batch runs for each micro-batch.

    A summary, a write, or an op that also depends on the update belongs to the update. Instead of a value that depends
    on the batch, it takes the mean over the micro-batches or the value of the first one.

    Args:
        program: The Program of a step in micro-batches.
        original: The graph that model_fn built.
        needs_batch: Whether an op of the Program's graph, given by its name, depends on the batch.

    Attributes:
        carried: The values that added ops of the update take from the micro-batches.
    """

    def __init__(self, program: Program, original: tf.Graph, needs_batch: Callable[[str], bool]) -> None:
        plan = program.micro_batches
        assert plan is not None
        self._update = frozenset(program.order[plan.num_first :])
        self._original = original
        self._needs_batch = needs_batch
        self._gradients = {
            name: gradient
            for gradient in plan.gradients
            for name in (gradient.mark.values, gradient.mark.rows)
            if name is not None
        }
        self._num_carried = len(plan.carried)
        self._placeholders: dict[tuple[Endpoint, bool], str] = {}
        self.carried: list[Carried] = []

    def placed(self, nodes: Collection[NodeDef]) -> list[NodeDef]:
        """Return the nodes, with placeholders in place of inputs from micro-batches, and these placeholders."""
        result: list[NodeDef] = []
        is_in_update: dict[str, bool] = {}  # of nodes that depend on the batch or on the update
        for node in nodes:
            inputs = [parse_input(text) for text in node.input]
            later = [self._is_in_update(endpoint.node, is_in_update) for endpoint in inputs]
            varying = [self._is_varying(endpoint.node, is_in_update) for endpoint in inputs]
            if any(later) or is_summary(node.op) or may_change_model(node.op):
                is_in_update[node.name] = True
                result += self._with_carried(node, inputs, varying)
                continue
            if any(varying):
                is_in_update[node.name] = False
            result.append(node)
        return result

    def total_of(self, name: str) -> Endpoint | None:
        """Return the output that holds the total of a gradient, by the name of its mark; None for other ops."""
        gradient = self._gradients.get(name)
        if gradient is None:
            return None
        if not gradient.totals:
            return Endpoint(_read_name(gradient), 0)
        return Endpoint(gradient.totals[0 if name == gradient.mark.values else 1], 0)

    def gradient_read_by(self, name: str) -> str | None:
        """Return the mark of the gradient whose stored total an op of this name reads; None for other names."""
        for mark, gradient in self._gradients.items():
            if not gradient.totals and name == _read_name(gradient):
                return mark
        return None

    def read_of_total(self, name: str, handle: str) -> NodeDef:
        """Return an op that reads a total in the store."""
        node = NodeDef(name=_read_name(self._gradients[name]), op="ReadVariableOp", input=[handle])
        node.attr["dtype"].type = self._original.get_tensor_by_name(f"{name}:0").dtype.as_datatype_enum
        return node

    def _is_in_update(self, name: str, known: dict[str, bool]) -> bool:
        return known.get(name, name in self._update or name in self._gradients)

    def _is_varying(self, name: str, known: dict[str, bool]) -> bool:
        if name in known:
            return not known[name]
        return name not in self._gradients and self._needs_batch(name)

    def _with_carried(self, node: NodeDef, inputs: list[Endpoint], varying: list[bool]) -> list[NodeDef]:
        new = copied(node)
        del new.input[:]
        made: list[NodeDef] = []
        for endpoint, is_varying in zip(inputs, varying, strict=True):
            total = self.total_of(endpoint.node)
            if not is_varying:
                new.input.append(str(total if total is not None and not endpoint.is_control else endpoint))
            elif not endpoint.is_control:
                new.input.append(self._carry(endpoint, made))
        return [*made, new]

    def _carry(self, endpoint: Endpoint, made: list[NodeDef]) -> str:
        tensor = self._original.get_tensor_by_name(f"{endpoint.node}:{endpoint.port}")
        is_mean = is_mean_over_micro_batches(tensor.dtype.is_floating, tensor.shape.rank)
        key = (endpoint, is_mean)
        if key not in self._placeholders:
            name = f"{CARRIED}{self._num_carried + len(self.carried)}"
            self._placeholders[key] = name
            self.carried.append(Carried(tensor.name, name, is_mean))
            node = NodeDef(name=name, op="Placeholder")
            node.attr["dtype"].type = tensor.dtype.as_datatype_enum
            node.attr["shape"].shape.CopyFrom(tensor.shape.as_proto())
            made.append(node)
        return self._placeholders[key]


def _read_name(gradient: Gradient) -> str:
    return gradient.sink.removesuffix("sink") + "value"
