"""Find ops whose results may differ between two equal runs, or after a resume, and advise what to do.

The table of all kernels that we tested is in README.md of this package.
"""

from __future__ import annotations

from collections.abc import Container, Iterator
from dataclasses import dataclass

from cerebras_tensorflow.graph.bodies import table_of_function
from cerebras_tensorflow.graph.function_calls import called_functions, reachable_functions
from cerebras_tensorflow.graph.nodes import GraphDef, NodeDef, NodeTable
from cerebras_tensorflow.graph.random_ops import is_replaceable, is_seeded
from cerebras_tensorflow.graph.scatters import UPDATES_OF_ROWS, has_distinct_rows

_DRAWS = "draws other numbers after a resume"
_DRAWS_ALWAYS = "draws other numbers in each run"
_SAMPLERS = ("UniformCandidateSampler", "LogUniformCandidateSampler", "LearnedUnigramCandidateSampler",
             "FixedUnigramCandidateSampler", "ThreadUnsafeUnigramCandidateSampler")  # fmt: skip
_SAMPLER_ADVICE = "give the loss sampled_values made from tf.random.uniform"
_POOLS = ("FractionalMaxPool", "FractionalAvgPool")
_GENERATORS = ("StatefulUniform", "StatefulUniformFullInt", "StatefulUniformInt", "StatefulStandardNormalV2",
               "StatefulTruncatedNormal", "StatefulRandomBinomial", "RngSkip", "RngReadAndSkip")  # fmt: skip
_OTHER_DRAWS = {
    **dict.fromkeys(_SAMPLERS, (_DRAWS, _SAMPLER_ADVICE)),
    "RandomCrop": (_DRAWS, "use tf.image.random_crop"),
    "NonDeterministicInts": (_DRAWS_ALWAYS, "use tf.random.uniform with an integer dtype"),
    "Skipgram": (_DRAWS, "make the pairs in the input pipeline"),
}
_SUMS = {
    "AddN": "adds its inputs in an order that follows timing",
    "AccumulateNV2": "adds its inputs in the order in which they arrive",
}


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
    table = NodeTable(graph_def)
    result = [
        InexactOp(name, node.op, *problem, ops=(name,))
        for name, node in table.nodes.items()
        for problem in _problems(table, node)
    ]
    result += _shared_generators(table)
    functions = reachable_functions(graph_def)
    for name, function in functions.items():
        inner = table_of_function(function)
        callers = _callers(graph_def, name, functions)
        result += [
            InexactOp(f"{name}/{node.name}", node.op, *problem, ops=callers)
            for node in function.node_def
            for problem in _problems(inner, node)
        ]
    return result


def _callers(graph_def: GraphDef, name: str, functions: Container[str]) -> tuple[str, ...]:
    return tuple(node.name for node in graph_def.node if name in called_functions(node, functions))


def _problems(table: NodeTable, node: NodeDef) -> Iterator[tuple[str, str]]:
    """Yield (reason, advice) for each way in which a node is inexact."""
    if node.op in _OTHER_DRAWS:
        yield _OTHER_DRAWS[node.op]
    elif is_replaceable(node):
        yield _DRAWS, "call its function directly, not through an op that takes the function"
    elif node.op in _POOLS and not (node.attr["deterministic"].b and is_seeded(node)):
        yield _DRAWS, "give it a seed, so that it pools the same regions in each step"
    elif node.op in _SUMS and node.attr["N"].i > 2:
        yield _SUMS[node.op], "add the tensors two at a time"
    elif node.op in UPDATES_OF_ROWS and not has_distinct_rows(table, node.name):
        yield (
            "updates rows that may come several times, in the order in which threads reach them",
            "make the rows unique before (tf.unique and tf.math.unsorted_segment_sum)",
        )
    elif node.op == "SymbolicGradient":
        yield "makes a gradient at run time, with sums and draws of its own", "use tf.function instead of Defun"


def _shared_generators(table: NodeTable) -> Iterator[InexactOp]:
    """Yield ops that draw from the same tf.random.Generator in no fixed order."""
    draws: dict[str, list[str]] = {}
    for name, node in table.nodes.items():
        if node.op in _GENERATORS:
            draws.setdefault(table.data_inputs(name)[0].node, []).append(name)
    for names in draws.values():
        for name in names[1:]:
            reason = f"and {names[0]} draw from one tf.random.Generator in no fixed order"
            yield InexactOp(name, table.nodes[name].op, reason, "use a generator for each, or tf.random", (name,))
