"""Small training graphs, and their runs in both modes, for tests that need a whole step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import tensorflow as tf

from cerebras_tensorflow.compiler.options import StreamingOptions
from cerebras_tensorflow.compiler.step import Step, compile_step
from cerebras_tensorflow.estimator.model.graph_settings import graph_semantics
from cerebras_tensorflow.estimator.model.model_call import op_name
from cerebras_tensorflow.graph.cost import op_outputs
from cerebras_tensorflow.graph.nodes import prune
from cerebras_tensorflow.graph.program import Program, Residence, WeightSpec
from cerebras_tensorflow.runtime.session import ProgramSession
from cerebras_tensorflow.runtime.weight_store.interface import WeightStore
from cerebras_tensorflow.runtime.weight_store.mapped import MappedStore

v1 = tf.compat.v1
ROWS, WIDTH = 4, 8
EVERYTHING_SPILLED: dict[str, Any] = {"spill_share": 1e9, "min_spill_bytes": 1}  # of StreamingOptions
Model = Callable[[Any, Any], tuple[Any, Any]]
MakeStore = Callable[[Sequence[WeightSpec], Path], WeightStore]


@dataclass(frozen=True)
class Small:
    """A graph, its step, what to fetch and the initial values."""

    graph: tf.Graph
    step: Step
    output: Any
    train_op: Any
    values: dict[str, np.ndarray]


@dataclass(frozen=True)
class Outcome:
    """The program, outputs and final variables of some runs of a graph."""

    program: Program
    outputs: list[np.ndarray]
    variables: dict[str, np.ndarray]

    @property
    def streamed(self) -> set[str]:
        """Names of the weights in the store."""
        return {spec.name for spec in self.program.streamed}

    def bits(self) -> tuple[list[bytes], dict[str, tuple[tuple[int, ...], bytes]]]:
        """Everything in a form that compares bit by bit."""
        outputs = [np.asarray(value).tobytes() for value in self.outputs]
        return outputs, {name: (value.shape, value.tobytes()) for name, value in self.variables.items()}


def weight(name: str = "w", shape: tuple[int, ...] = (WIDTH, WIDTH)) -> Any:
    """A variable with drawn values."""
    return v1.get_variable(name, list(shape), initializer=v1.random_normal_initializer(stddev=0.5))


def sgd(loss: Any, step: Any) -> Any:
    """Plain gradient descent."""
    return v1.train.GradientDescentOptimizer(0.1).minimize(loss, step)


def build(model: Model) -> Small:
    """Build a graph.

    Args:
        model: (x of shape (ROWS, WIDTH), global step) -> (what to fetch, train op or None).
    """
    graph = tf.Graph()
    with graph.as_default(), graph_semantics():
        v1.set_random_seed(3)
        global_step = v1.train.create_global_step(graph)
        x = v1.placeholder(tf.float32, [ROWS, WIDTH], name="cs_input/0")
        output, train_op = model(x, global_step)
        variables = v1.global_variables()
        with v1.Session(graph=graph, config=v1.ConfigProto(allow_soft_placement=True)) as session:
            session.run(v1.global_variables_initializer())
            values = dict(zip([v.op.name for v in variables], session.run(variables), strict=True))
    weights = [variable.handle.op.name for variable in variables]
    train_node = op_name(graph, train_op) if train_op is not None else None
    roots = [op_name(graph, output), *weights, "cs_input/0", *([train_node] if train_node else [])]
    step = Step(
        graph_def=prune(graph.as_graph_def(), roots),
        roots=roots,
        train_node=train_node,
        sources=["cs_input/0"],
        global_step=global_step.handle.op.name,
        weights=weights,
    )
    return Small(graph, step, output, train_op, values)


def compile_small(small: Small, mode: str, min_bytes: int = 64, window_bytes: int = 300, **options: Any) -> Program:
    """Compile a graph; every weight of a few numbers is large enough to be streamed.

    Args:
        small: The graph.
        mode: Execution mode.
        min_bytes, window_bytes: Of StreamingOptions.
        options: Its others.
    """
    return compile_step(small.step, mode, StreamingOptions(min_bytes, window_bytes, **options), op_outputs(small.graph))


def open_small(
    small: Small, program: Program, folder: Path, make_store: MakeStore = MappedStore, session_config: Any = None
) -> ProgramSession:
    """A session with the initial values, over batches that are the same each time.

    Args:
        small: The graph.
        program: Its Program.
        folder: For a store in a file.
        make_store: (what to store, folder) -> the store.
        session_config: ConfigProto of the session.
    """
    random = np.random.default_rng(0)
    session = ProgramSession(
        program,
        small.graph,
        small.step.train_node,
        make_store(program.stored, folder) if program.needs_store else None,
        session_config,
        lambda: {"cs_input/0:0": random.normal(size=(ROWS, WIDTH)).astype(np.float32)},
    )
    for name, value in small.values.items():
        session.load(name, value)
    return session


def run_small(
    small: Small,
    mode: str,
    steps: int = 4,
    min_bytes: int = 64,
    window_bytes: int = 300,
    make_store: MakeStore = MappedStore,
    **options: Any,
) -> Outcome:
    """Run a graph for some steps; the options are those of compile_small and open_small."""
    program = compile_small(small, mode, min_bytes, window_bytes, **options)
    with (
        TemporaryDirectory() as folder,
        closing(open_small(small, program, Path(folder, "store"), make_store)) as session,
    ):
        fetches = [small.output] if small.train_op is None else [small.train_op, small.output]
        outputs = [session.run(fetches)[-1] for _ in range(steps)]
        return Outcome(program, outputs, {name: session.read(name).copy() for name in small.values})


def run_both(model: Model, steps: int = 4, min_bytes: int = 64, window_bytes: int = 300) -> Outcome:
    """Run a graph in both modes, and streaming in each of its ways; return the run that streams from a store.

    The ways are weights in a store, the same with every value spilled that can be, and weights in host memory. All must
    agree with the pipelined run in every bit.
    """
    small = build(model)
    pipelined = run_small(small, "pipelined", steps)
    streamed = run_small(small, "weight_streaming", steps, min_bytes, window_bytes)
    assert streamed.bits() == pipelined.bits()
    for options in (EVERYTHING_SPILLED, {"residence": Residence.HOST_MEMORY}):
        other = run_small(small, "weight_streaming", steps, min_bytes, window_bytes, **options)
        assert other.bits() == pipelined.bits(), options
        assert other.streamed == streamed.streamed
    return streamed
