"""Which ops of a graph may write variables: ops of an optimizer, or a call of a tf.function that holds it."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import tensorflow as tf

from cerebras_tensorflow.estimator.model.slots import NO_CHANGE
from cerebras_tensorflow.graph.function_calls import called_functions, functions_that
from cerebras_tensorflow.graph.variables import may_change_model


class WritingOps:
    """Finds the ops that may write variables. The functions of the graph are read when first asked for.

    Args:
        graph: The graph. All of its functions exist by then.
    """

    def __init__(self, graph: tf.Graph) -> None:
        self._graph = graph

    def writes(self, op: Any) -> bool:
        """Whether an op may write a variable whose handle it takes, itself or in a function that it calls."""
        if op.type in NO_CHANGE:
            return False
        if may_change_model(op.type):
            return True
        return bool(self._writers.intersection(called_functions(op.node_def, self._library)))

    @cached_property
    def _library(self) -> dict[str, Any]:
        return {function.signature.name: function for function in self._graph.as_graph_def().library.function}

    @cached_property
    def _writers(self) -> set[str]:
        return functions_that(may_change_model, self._library)
