"""A small model whose step is cut into micro-batches, and its training in any mode and store."""

# B batch, S sequence, H hidden, V vocabulary

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from cerebras_tensorflow.compiler.options import StreamingOptions
from cerebras_tensorflow.compiler.step import Step, compile_step
from cerebras_tensorflow.estimator.execution.owned_parts import OwnedParts
from cerebras_tensorflow.estimator.model.gradient_marks import marked_gradients, marks_of
from cerebras_tensorflow.estimator.model.model_call import graph_semantics, op_name
from cerebras_tensorflow.graph.cost import op_outputs
from cerebras_tensorflow.graph.nodes import prune
from cerebras_tensorflow.graph.program import Program, Residence, WeightSpec
from cerebras_tensorflow.runtime.csx.peers import Peers
from cerebras_tensorflow.runtime.csx.shared_store import SharedStore
from cerebras_tensorflow.runtime.session import ProgramSession
from cerebras_tensorflow.runtime.weight_store.file import FileStore
from cerebras_tensorflow.runtime.weight_store.interface import WeightStore
from cerebras_tensorflow.runtime.weight_store.mapped import MappedStore
from cerebras_tensorflow.runtime.weight_store.memory import MemoryStore
from cerebras_tensorflow.runtime.weight_store.remote import ServerAddress, ServerStore

v1 = tf.compat.v1
BATCH, SEQUENCE, VOCABULARY, HIDDEN = 8, 4, 50, 16

Loss = Callable[[Any, Any], Any]
Train = Callable[[Any, Any], Any]


@dataclass(frozen=True)
class Cut:
    """A training graph of one micro-batch.

    Attributes:
        graph, step, loss, train_op: The graph and its parts.
        values: Initial values.
        fetches: More tensors that a test fetches.
    """

    graph: tf.Graph
    step: Step
    loss: Any
    train_op: Any
    values: dict[str, np.ndarray]
    fetches: dict[str, Any]


def tied_loss(ids_BS: Any, targets_B: Any, dtype: Any = tf.float32, dropout: float = 0.1) -> Any:
    """Loss of a model whose embedding is looked up (sparse gradient) and multiplied with (dense gradient)."""
    embedding_VH = weight("embedding", [VOCABULARY, HIDDEN])
    x_BH = tf.reduce_sum(tf.nn.embedding_lookup(embedding_VH, ids_BS), 1)
    x_BH = tf.tanh(tf.matmul(tf.cast(x_BH, dtype), tf.cast(weight("w", [HIDDEN, HIDDEN]), dtype)))
    if dropout:
        x_BH = v1.nn.dropout(x_BH, rate=dropout)
    logits_BV = tf.cast(tf.matmul(x_BH, tf.cast(embedding_VH, dtype), transpose_b=True), tf.float32)
    logits_BV += v1.get_variable("bias", [VOCABULARY], initializer=v1.zeros_initializer())
    losses_B = tf.nn.sparse_softmax_cross_entropy_with_logits(targets_B, logits_BV)
    return tf.reduce_mean(losses_B)


def weight(name: str, shape: list[int]) -> Any:
    """A weight with normal initial values."""
    return v1.get_variable(name, shape, initializer=v1.random_normal_initializer(stddev=0.5))


def build(
    train: Train,
    loss: Loss = tied_loss,
    count: int = 4,
    batch: int = BATCH,
    fetch: Callable[[], dict[str, Any]] = dict,
) -> Cut:
    """Build the training graph of one of `count` micro-batches. `fetch` makes more tensors, which are compiled too."""
    graph = tf.Graph()
    with graph.as_default(), graph_semantics():
        v1.set_random_seed(7)
        global_step = v1.train.create_global_step(graph)
        ids_BS = v1.placeholder(tf.int32, [batch // count, SEQUENCE], name="cs_input/0")
        targets_B = v1.placeholder(tf.int32, [batch // count], name="cs_input/1")
        with marked_gradients(graph) if count > 1 else nullcontext():
            loss_value = loss(ids_BS, targets_B)
            train_op = train(loss_value, global_step)
        fetches = fetch()
        with v1.Session(graph=graph) as session:
            session.run(v1.global_variables_initializer())
            names = [variable.op.name for variable in v1.global_variables()]
            values = dict(zip(names, session.run(v1.global_variables()), strict=True))
        weights = [variable.handle.op.name for variable in v1.global_variables()]
        trainable = [variable.handle.op.name for variable in v1.trainable_variables()]
    inputs = ["cs_input/0", "cs_input/1"]
    roots = [op_name(graph, one) for one in (loss_value, train_op, *fetches.values())]
    step = Step(
        prune(graph.as_graph_def(), [*roots, *weights, *inputs]),
        [*roots, *weights, *inputs],
        op_name(graph, train_op),
        inputs,
        global_step.handle.op.name,
        weights,
        micro_batches=count,
        marks=marks_of(graph),
        trainable=trainable,
    )
    return Cut(graph, step, loss_value, train_op, values, fetches)


def batches(steps: int, batch: int = BATCH) -> list[dict[str, np.ndarray]]:
    """Random batches, the same each time. Rows repeat within and between micro-batches."""
    random = np.random.default_rng(0)
    return [
        {
            "cs_input/0:0": random.integers(0, VOCABULARY // 5, (batch, SEQUENCE)),
            "cs_input/1:0": random.integers(0, VOCABULARY, batch),
        }
        for _ in range(steps)
    ]


@dataclass(frozen=True)
class Result:
    """The Program, what each step fetched, and the final variables of a run."""

    program: Program
    fetched: list[dict[str, Any]]
    variables: dict[str, np.ndarray]

    @property
    def losses(self) -> list[float]:
        """The losses."""
        return [float(values["loss"]) for values in self.fetched]


def train(
    cut: Cut,
    mode: str = "pipelined",
    steps: int = 4,
    folder: Path | None = None,
    is_mapped: bool = False,
    data: Sequence[dict[str, np.ndarray]] | None = None,
    later: Callable[[], dict[str, Any]] | None = None,
) -> Result:
    """Train; with a folder the weights and the totals are streamed from a file there.

    Args:
        cut: The graph.
        mode: Execution mode.
        steps: Number of steps.
        folder: Folder of the store.
        is_mapped: Whether the file is mapped.
        data: The batches.
        later: Makes more tensors after compiling, as a hook may.
    """
    program = compile_step(cut.step, mode, options(folder, is_mapped), op_outputs(cut.graph))
    store: WeightStore | None = None
    if program.needs_store and folder is not None:
        specs: tuple[WeightSpec, ...] = program.stored
        store = (MappedStore if is_mapped else FileStore)(specs, folder)
    source = iter(data or batches(steps))
    session = ProgramSession(program, cut.graph, cut.step.train_node, store, None, lambda: next(source))
    with cut.graph.as_default():
        added = later() if later is not None else {}
    try:
        for name, value in cut.values.items():
            session.load(name, value.copy())  # TensorFlow may take its memory
        wanted = {"loss": cut.loss, **cut.fetches, **added}
        fetched = [session.run([wanted, cut.train_op])[0] for _ in range(steps)]
        return Result(program, fetched, {name: session.read(name).copy() for name in cut.values})
    finally:
        session.close()


def options(folder: Path | None, is_mapped: bool) -> StreamingOptions:
    """Options with which everything that can be streamed or spilled is."""
    residence = Residence.MAPPED_FILE if is_mapped else Residence.STORE
    return StreamingOptions(
        min_stream_bytes=256,
        window_bytes=4000,
        slice_bytes=512,
        spill_share=1e9,
        min_spill_bytes=64,
        residence=residence if folder is not None else Residence.HOST_MEMORY,
    )


def different(left: Result, right: Result) -> list[str]:
    """Names of the variables whose bits differ."""
    return [name for name, value in left.variables.items() if value.tobytes() != right.variables[name].tobytes()]


def store_of(
    program: Program, rank: int, folder: Path, shared: str | None, servers: Sequence[ServerAddress] = ()
) -> WeightStore:
    """Return the store of one CSX."""
    if shared is None:
        return FileStore(program.stored, folder / str(rank))
    specs = program.stored_by(rank)
    makers: dict[str, Callable[[], WeightStore]] = {
        "memory": lambda: MemoryStore(specs, is_shared=True),
        "file": lambda: FileStore(specs, folder / str(rank)),
        "mapped": lambda: MappedStore(specs, folder / str(rank)),
        "servers": lambda: ServerStore(specs, servers),
    }
    return SharedStore(
        program,
        rank,
        makers[shared](),
        lambda answer, counted, memory: Peers(rank, folder, b"secret", answer, counted=tuple(counted), memory=memory),
        OwnedParts() if rank else None,
    )
