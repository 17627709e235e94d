"""Which function calls of a graph write variables, as a tf.function that holds the optimizer does."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import tensorflow as tf

from cerebras_tensorflow.estimator.model.slots import NO_CHANGE
from cerebras_tensorflow.graph.function_calls import called_functions, functions_with
from cerebras_tensorflow.graph.variables import is_write


class WritingCalls:
    """The functions of a graph that write variables, read when first asked for.

    Args:
        graph: The graph. All of its functions exist by then.
    """

    def __init__(self, graph: tf.Graph) -> None:
        self._graph = graph

    def writes(self, op: Any) -> bool:
        """Whether an op calls a function that writes a variable."""
        if op.type in NO_CHANGE:
            return False
        return bool(self._writers.intersection(called_functions(op.node_def, self._library)))

    @cached_property
    def _library(self) -> dict[str, Any]:
        return {function.signature.name: function for function in self._graph.as_graph_def().library.function}

    @cached_property
    def _writers(self) -> set[str]:
        own = [name for name, one in self._library.items() if any(is_write(node.op) for node in one.node_def)]
        return functions_with(self._library, own)
