"""Find ops whose results may differ between two equal runs, or after a resume, and advise what to do.

The table of all kernels that we tested is in README.md of this package.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass

import tensorflow as tf

from cerebras_tensorflow.graph.function_calls import called_functions, reachable_functions
from cerebras_tensorflow.graph.nodes import GraphDef, NodeDef
from cerebras_tensorflow.graph.random_ops import is_replaceable, is_seeded
from cerebras_tensorflow.graph.scatters import UPDATES_OF_ROWS, has_distinct_rows

_DRAWS = "draws other numbers after a resume"
_DRAWS_ALWAYS = "draws other numbers in each run"
_SAMPLERS = ("UniformCandidateSampler", "LogUniformCandidateSampler", "LearnedUnigramCandidateSampler",
             "FixedUnigramCandidateSampler", "ThreadUnsafeUnigramCandidateSampler")  # fmt: skip
_POOLS = ("FractionalMaxPool", "FractionalAvgPool")
_CONTAINERS = ("FIFOQueue", "FIFOQueueV2", "PaddingFIFOQueue", "PaddingFIFOQueueV2", "PriorityQueue",
               "PriorityQueueV2", "RandomShuffleQueue", "RandomShuffleQueueV2", "Barrier", "Stage", "MapStage",
               "OrderedMapStage", "ConditionalAccumulator", "ResourceConditionalAccumulator",
               "SparseConditionalAccumulator", "RecordInput")  # fmt: skip
_ITERATORS = ("Iterator", "IteratorV2", "OneShotIterator")
OPS_OF_INPUTS = {*_CONTAINERS, *_ITERATORS}
"""Ops that an input_fn of tensors may have: how its data continue after a resume is up to it."""


@dataclass(frozen=True)
class _Rule:
    """Why an op is inexact, and what to do instead.

    Attributes:
        reason: The problem, as a clause without its subject.
        advice: What to do instead.
        applies: Whether a node of a graph has the problem.
    """

    reason: str
    advice: str
    applies: Callable[[Mapping[str, NodeDef], NodeDef], bool] = lambda _nodes, _node: True


_POOL = _Rule(
    _DRAWS,
    "give it a seed, so that it pools the same regions in each step",
    lambda _, node: not (node.attr["deterministic"].b and is_seeded(node)),
)
_SUM_ADVICE = "add the tensors two at a time"
_ROWS = _Rule(
    "updates rows that may repeat, in a timing-dependent order",
    "make the rows unique before (tf.unique and tf.math.unsorted_segment_sum)",
    lambda nodes, node: not has_distinct_rows(nodes, node),
)
_COUNTS = _Rule(
    "adds floating-point weights in a timing-dependent order",
    "use tf.math.unsorted_segment_sum(weights, values, size)",
    lambda _, node: tf.as_dtype(node.attr["T"].type).is_floating,
)
_RULES: Mapping[str, _Rule] = {
    **dict.fromkeys(("Bincount", "DenseBincount", "SparseBincount"), _COUNTS),
    **dict.fromkeys(_SAMPLERS, _Rule(_DRAWS, "give the loss sampled_values made from tf.random.uniform")),
    "RandomCrop": _Rule(_DRAWS, "use tf.image.random_crop"),
    "NonDeterministicInts": _Rule(_DRAWS_ALWAYS, "use tf.random.uniform with an integer dtype"),
    "Skipgram": _Rule(_DRAWS, "make the pairs in the input pipeline"),
    "Timestamp": _Rule("depends on the clock", "use the global step"),
    **dict.fromkeys(_CONTAINERS, _Rule("is empty after a resume, because no checkpoint has it", "use a variable")),
    **dict.fromkeys(_ITERATORS, _Rule("starts again with its first element after a resume", "use input_fn")),
    **dict.fromkeys(_POOLS, _POOL),
    "AddN": _Rule("adds its inputs in a timing-dependent order", _SUM_ADVICE, lambda _, node: node.attr["N"].i > 2),
    "AccumulateNV2": _Rule(
        "adds its inputs in the order in which they arrive", _SUM_ADVICE, lambda _, node: node.attr["N"].i > 2
    ),
    **dict.fromkeys(UPDATES_OF_ROWS, _ROWS),
    "SymbolicGradient": _Rule(
        "makes a gradient at run time, with sums and draws of its own", "use tf.function instead of Defun"
    ),
}
"""Op type -> its rule."""


@dataclass(frozen=True)
class InexactOp:
    """An op whose result may differ between equal runs.

    Attributes:
        name: Name of the op; "function/op" inside a function.
        op: Its type.
        reason: The problem, as a clause without its subject.
        advice: What to do instead.
        ops: Ops of the main graph that contain or call it.
    """

    name: str
    op: str
    reason: str
    advice: str
    ops: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """The warning as a sentence, without its period."""
        return f"{self.name} ({self.op}) {self.reason}; {self.advice}"


def find_inexact_ops(graph_def: GraphDef) -> list[InexactOp]:
    """Return the ops of a compiled step whose results may differ between equal runs, in the graph's order.

    Args:
        graph_def: The step after all passes.
    """
    nodes = {node.name: node for node in graph_def.node}
    result = [
        InexactOp(name, node.op, *problem, ops=(name,))
        for name, node in nodes.items()
        if (problem := _problem(nodes, node)) is not None
    ]
    functions = reachable_functions(graph_def)
    for name, function in functions.items():
        inner = {node.name: node for node in function.node_def}
        callers = _callers(graph_def, name, functions)
        result += [
            InexactOp(f"{name}/{node.name}", node.op, *problem, ops=callers)
            for node in function.node_def
            if (problem := _problem(inner, node)) is not None
        ]
    return result


def _callers(graph_def: GraphDef, name: str, functions: Container[str]) -> tuple[str, ...]:
    return tuple(node.name for node in graph_def.node if name in called_functions(node, functions))


def _problem(nodes: Mapping[str, NodeDef], node: NodeDef) -> tuple[str, str] | None:
    """Return why a node is inexact, and what to do instead; None if it is exact."""
    if is_replaceable(node):
        return _DRAWS, "call its function directly, not through an op that takes the function"
    rule = _RULES.get(node.op)
    return (rule.reason, rule.advice) if rule is not None and rule.applies(nodes, node) else None
