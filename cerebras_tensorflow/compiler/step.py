"""The compiler's entry: the passes that turn one step's graph into a Program, and their order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from cerebras_tensorflow.compiler.options import StreamingOptions
from cerebras_tensorflow.compiler.pipelined import compile_pipelined
from cerebras_tensorflow.compiler.streaming.compile import compile_weight_streaming
from cerebras_tensorflow.config.env import WEIGHT_STREAMING
from cerebras_tensorflow.graph.cost import Output
from cerebras_tensorflow.graph.nodes import GraphDef, NodeDef
from cerebras_tensorflow.graph.ordering import reads_before_writes
from cerebras_tensorflow.graph.program import GLOBAL_STEP_AFTER, Program
from cerebras_tensorflow.graph.randomness import make_stateless
from cerebras_tensorflow.graph.scatters import add_rows_in_order
from cerebras_tensorflow.graph.sums import fix_order_of_sums


@dataclass(frozen=True)
class Step:
    """One step as model_fn and the estimator define it.

    Attributes:
        graph_def: The part of model_fn's graph that the roots and the train op need.
        roots: Names of all ops that a run of the step may fetch.
        train_node: Name of the train op; None in evaluation and prediction.
        sources: Names of the placeholders that take the batch.
        global_step: Name of the global step's VarHandleOp; None if the graph has none.
        weights: VarHandleOps of the variables in a checkpoint, by name. No other variable is streamed.
    """

    graph_def: GraphDef
    roots: Sequence[str]
    train_node: str | None
    sources: Sequence[str]
    global_step: str | None
    weights: Sequence[str]


def compile_step(
    step: Step, mode: str, options: StreamingOptions, outputs: Mapping[str, Sequence[Output]] | None = None
) -> Program:
    """Return the Program of a step.

    Both modes fix the order of sums and of additions to rows, make random ops functions of the step, and put reads
    before writes. So their results agree to the last bit.

    Args:
        step: The step.
        mode: Execution mode.
        options: Options of weight streaming.
        outputs: Outputs of each op of model_fn's graph, from graph.cost.op_outputs. None: the memory of values is
            unknown, and nothing is spilled.

    Raises:
        CompileError: If the graph cannot be compiled for the mode, or not within the memory budget.
    """
    graph_def = GraphDef()
    graph_def.CopyFrom(step.graph_def)
    if step.train_node and step.global_step:
        after = NodeDef(name=GLOBAL_STEP_AFTER, op="ReadVariableOp", input=[step.global_step, f"^{step.train_node}"])
        handle = next(node for node in graph_def.node if node.name == step.global_step)
        after.attr["dtype"].CopyFrom(handle.attr["dtype"])
        graph_def.node.append(after)
    graph_def, sum_of_partial = fix_order_of_sums(graph_def)
    if outputs is not None:
        outputs = {**outputs, **{new: outputs[name] for new, name in sum_of_partial.items() if name in outputs}}
    graph_def = make_stateless(add_rows_in_order(graph_def, outputs or {}))
    if step.train_node:
        graph_def = reads_before_writes(graph_def, step.train_node, step.sources)
    if mode == WEIGHT_STREAMING:
        weights = [
            weight for weight in step.weights if weight != step.global_step
        ]  # resident: every run reads and fetches it
        return compile_weight_streaming(
            graph_def, step.train_node, step.sources, weights, options, outputs or {}, frozenset(step.roots)
        )
    return compile_pipelined(graph_def, step.sources, outputs or {})
