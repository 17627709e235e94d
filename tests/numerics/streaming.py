"""A small transformer and the comparison of its training in both execution modes."""

# B batch, S sequence, H hidden, F filter, V vocabulary

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
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
from cerebras_tensorflow.runtime.weight_store.file import FileStore
from cerebras_tensorflow.runtime.weight_store.interface import WeightStore
from cerebras_tensorflow.runtime.weight_store.mapped import MappedStore

v1 = tf.compat.v1
BATCH, SEQUENCE, VOCABULARY = 4, 16, 96


@dataclass(frozen=True)
class Built:
    """A training graph, its initial values and its step."""

    graph: tf.Graph
    step: Step
    loss: Any
    train_op: Any
    values: dict[str, np.ndarray]


@dataclass(frozen=True)
class Trained:
    """The program, losses and final variables of a run."""

    program: Program
    losses: list[float]
    variables: dict[str, np.ndarray]


def transformer_loss(ids_BS: Any, labels_BS: Any, hidden: int = 32, layers: int = 3, dtype: Any = tf.float32) -> Any:
    """Mean cross entropy of a small transformer with dropout and tied embeddings; weights stay float32."""

    def weight(name: str, shape: list[int]) -> Any:
        return v1.get_variable(name, shape, initializer=v1.random_normal_initializer(stddev=0.05))

    embedding_VH = weight("embedding", [VOCABULARY, hidden])
    # TensorFlow may write the product over its input if it sees no other reference to it. A slice hides that the input
    # is part of a weight.
    positions = weight("positions", [4 * SEQUENCE, hidden])[:SEQUENCE] * 2.0
    x_BSH = tf.cast(tf.nn.embedding_lookup(embedding_VH, ids_BS) + positions, dtype)
    for layer in range(layers):
        with v1.variable_scope(f"layer_{layer}"):
            gain_H = v1.get_variable("gain", [hidden], initializer=v1.ones_initializer())
            x = tf.reshape(x_BSH * tf.cast(gain_H, dtype), [-1, hidden])
            qkv = tf.matmul(x, tf.cast(weight("qkv", [hidden, 3 * hidden]), dtype))
            q_BSH, k_BSH, v_BSH = tf.split(tf.reshape(qkv, [BATCH, SEQUENCE, 3 * hidden]), 3, axis=-1)
            scores_BSS = tf.nn.softmax(tf.matmul(q_BSH, k_BSH, transpose_b=True) / hidden**0.5)
            x_BSH += tf.matmul(v1.nn.dropout(scores_BSS, rate=0.1), v_BSH)
            up = tf.cast(weight("up", [hidden, 4 * hidden]), dtype)
            up_F = tf.nn.gelu(tf.matmul(tf.reshape(x_BSH, [-1, hidden]), up))
            down = tf.matmul(up_F, tf.cast(weight("down", [4 * hidden, hidden]), dtype))
            x_BSH += v1.nn.dropout(tf.reshape(down, [BATCH, SEQUENCE, hidden]), rate=0.1)
    logits = tf.matmul(tf.reshape(x_BSH, [-1, hidden]), tf.cast(embedding_VH, dtype), transpose_b=True)
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(tf.reshape(labels_BS, [-1]), tf.cast(logits, tf.float32))
    return tf.reduce_mean(losses)


def build(train: Callable[[Any, Any], Any], loss: Callable[[Any, Any], Any] = transformer_loss) -> Built:
    """Build a training graph.

    Args:
        train: (loss, global step) -> train op.
        loss: (ids, labels) -> loss.
    """
    graph = tf.Graph()
    with graph.as_default(), graph_semantics():
        v1.set_random_seed(7)
        global_step = v1.train.create_global_step(graph)
        ids_BS = v1.placeholder(tf.int32, [BATCH, SEQUENCE], name="cs_input/0")
        labels_BS = v1.placeholder(tf.int32, [BATCH, SEQUENCE], name="cs_input/1")
        loss_value = loss(ids_BS, labels_BS)
        train_op = train(loss_value, global_step)
        with v1.Session(graph=graph) as session:
            session.run(v1.global_variables_initializer())
            names = [variable.op.name for variable in v1.global_variables()]
            values = dict(zip(names, session.run(v1.global_variables()), strict=True))
        weights = [variable.handle.op.name for variable in v1.global_variables()]
    roots = [op_name(graph, loss_value), op_name(graph, train_op), *weights]
    step = Step(
        prune(graph.as_graph_def(), roots),
        roots,
        op_name(graph, train_op),
        ["cs_input/0", "cs_input/1"],
        global_step.handle.op.name,
        weights,
    )
    return Built(graph, step, loss_value, train_op, values)


def batches(count: int) -> list[dict[str, np.ndarray]]:
    """Random batches, the same each time."""
    random = np.random.default_rng(0)
    size = (BATCH, SEQUENCE)
    return [
        {"cs_input/0:0": random.integers(0, VOCABULARY, size), "cs_input/1:0": random.integers(0, VOCABULARY, size)}
        for _ in range(count)
    ]


@contextmanager
def opened(
    built: Built,
    mode: str,
    steps: int,
    make_store: Callable[[Sequence[WeightSpec]], WeightStore] | None = None,
    window_bytes: int = 40_000,
    is_mapped: bool = False,
    threads: int = 0,
    repeats_batch: bool = False,
    min_stream_bytes: int = 1024,
) -> Iterator[ProgramSession]:
    """Yield a session with the initial values and batches for some steps: a new batch per step, or always the first.

    A store holds the weights and every value that can be spilled; a mapped file holds weights only. Updates are cut
    into slices of 4 kB, or of a 32nd of a larger window. `threads` limits the ops that run at a time; 0: as in a run.
    """
    residence = Residence.MAPPED_FILE if is_mapped else Residence.STORE
    if mode == "weight_streaming" and make_store is None:
        residence = Residence.HOST_MEMORY
    options = StreamingOptions(
        min_stream_bytes=min_stream_bytes,
        window_bytes=window_bytes,
        slice_bytes=4096,
        spill_share=1e9,
        min_spill_bytes=256,
        residence=residence,
    )
    program = compile_step(built.step, mode, options, op_outputs(built.graph))
    store = make_store(program.stored) if program.streamed and make_store else None
    source = iter(batches(1) * steps if repeats_batch else batches(steps))
    config = v1.ConfigProto(inter_op_parallelism_threads=threads, use_per_session_threads=threads > 0)
    session = ProgramSession(program, built.graph, built.step.train_node, store, config, lambda: next(source))
    try:
        for name, value in built.values.items():
            session.load(name, value.copy())  # TensorFlow may take its memory, and an update write there
        yield session
    finally:
        session.close()


def train(
    built: Built,
    mode: str,
    steps: int,
    store_folder: Path | None = None,
    window_bytes: int = 40_000,
    is_mapped: bool = False,
) -> Trained:
    """Train in one mode. With a folder, the weights are streamed from a file there; see `opened`."""

    def in_folder(specs: Sequence[WeightSpec]) -> WeightStore:
        assert store_folder is not None
        return (MappedStore if is_mapped else FileStore)(specs, store_folder)

    with opened(built, mode, steps, in_folder if store_folder else None, window_bytes, is_mapped) as session:
        losses = [float(session.run([built.train_op, built.loss])[1]) for _ in range(steps)]
        return Trained(session.program, losses, {name: session.read(name).copy() for name in built.values})


def assert_same_bits(built: Built, folder: Path, steps: int = 50, window_bytes: int = 40_000) -> Trained:
    """Train pipelined, streamed from memory, a mapped file and a file; all must agree in every bit. Return the last."""
    pipelined = train(built, "pipelined", steps)
    for store_folder, is_mapped in ((None, False), (folder, True), (folder, False)):
        streamed = train(built, "weight_streaming", steps, store_folder, window_bytes, is_mapped)
        assert streamed.losses == pipelined.losses
        different = [
            name for name, value in pipelined.variables.items() if value.tobytes() != streamed.variables[name].tobytes()
        ]
        assert not different
    assert any(name for name, value in pipelined.variables.items() if not np.array_equal(value, built.values[name]))
    return streamed
