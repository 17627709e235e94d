"""A session that runs a Program and looks, to hooks, like a session on the graph that model_fn built."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from cerebras_tensorflow.graph.nodes import GraphDef
from cerebras_tensorflow.graph.program import GLOBAL_STEP_AFTER, Program, WeightSpec
from cerebras_tensorflow.graph.randomness import SEEDED_COUNTER, counter_feed
from cerebras_tensorflow.runtime.fetches import FetchedGraph, has_node, op_names
from cerebras_tensorflow.runtime.host.heap import trim_heap
from cerebras_tensorflow.runtime.session_snapshot import SessionSnapshot
from cerebras_tensorflow.runtime.variables import SessionVariables, streamed_names
from cerebras_tensorflow.runtime.weight_store.calls import StoreCalls
from cerebras_tensorflow.runtime.weight_store.interface import WeightStore

_GLOBAL_STEP = "global_step"
_EXTRA_THREADS = 4  # for store calls that wait for the disk while the cores compute


class ProgramSession:
    """Runs a Program. Fetches and feeds are given by the original graph's tensors, ops and names.

    `fetches.py` finds what they are in the Program, `variables.py` sets and reads variables; this class runs steps:
    their batch, their counters, the store's errors.

    Args:
        program: What to run.
        graph: The graph that model_fn built; stays the caller's.
        train_node: Name of the train op; a run that fetches it is a training step.
        store: The weight store for Program.streamed; None if there are none.
        session_config: ConfigProto to start from.
        next_batch: Called for the feeds of each run that needs the batch; returns tensor name -> array.
    """

    def __init__(
        self,
        program: Program,
        graph: tf.Graph,
        train_node: str | None = None,
        store: WeightStore | None = None,
        session_config: Any = None,
        next_batch: Callable[[], Mapping[str, np.ndarray]] | None = None,
    ) -> None:
        self.graph = graph
        self.program = program
        self._train_node = train_node
        self._store = store
        self._calls = StoreCalls(store) if store is not None else None
        self._next_batch = next_batch
        self._batch: Mapping[str, np.ndarray] | None = None
        graph_def = self._calls.bind(program.graph_def) if self._calls else program.graph_def
        self._ops = FetchedGraph(program, graph_def, graph, frozenset(streamed_names(program)))
        settings = session_settings(session_config, store is not None)
        self._session = tf.compat.v1.Session(graph=self._ops.graph, config=settings)
        self._variables = SessionVariables(program, self._ops, self._session, store)
        self._has_step_counters = has_node(self._ops.graph, SEEDED_COUNTER)
        self._entropy = secrets.randbits(63)
        self._step = 0
        self._micro_step = 0
        if store is not None:
            trim_heap()

    @property
    def sess_str(self) -> str:
        """Target, as hooks read it from a TensorFlow session."""
        return str(self._session.sess_str)

    @property
    def store(self) -> WeightStore | None:
        """The weight store; None if nothing is streamed."""
        return self._store

    @property
    def global_step(self) -> int:
        """Value of the global step after the last run."""
        return self._step

    def run(self, fetches: Any, feed_dict: Any = None, options: Any = None, run_metadata: Any = None) -> Any:
        """Run the Program; like tf.compat.v1.Session.run.

        Raises:
            CompileError: If a fetch is not part of the Program.
            StoreError: If the weight store failed.
        """
        self._variables.flush()
        if self._store is not None:
            self._store.between_steps()
        mapped = self._ops.mapped(fetches)
        names = frozenset(op_names(mapped))
        is_step = self._train_node is not None and self._train_node in names
        extra = self._step_fetches() if is_step else []
        feeds = {key if isinstance(key, str) else key.name: value for key, value in (feed_dict or {}).items()}
        feeds.update(self._standard_feeds(names, is_step))
        try:
            result, after = self._session.run((mapped, extra), feeds, options=options, run_metadata=run_metadata)
        except tf.errors.OpError as error:
            original = self._calls.take_error() if self._calls else None
            if original is not None:
                raise original from error
            raise
        if is_step or self._train_node is None:
            self._batch = None  # without a train op, every run that needs a batch takes the next one
        if is_step and self._variables.is_resident(_GLOBAL_STEP):
            self._count(int(after[-1]))
        return result

    def load(self, name: str, value: np.ndarray) -> None:
        """Set a variable by its checkpoint name."""
        self._variables.load(name, value)
        if name == _GLOBAL_STEP and self._variables.is_resident(name):
            self._step = int(value)

    def assign(
        self, graph_def: GraphDef, tensors: Mapping[str, str], feeds: Mapping[str, np.ndarray]
    ) -> tuple[str, ...]:
        """Set variables to tensors of another graph, see `SessionVariables.assign`; return the names that were not."""
        left = self._variables.assign(graph_def, tensors, feeds)
        if _GLOBAL_STEP in tensors and _GLOBAL_STEP not in left:
            self._step = int(self.read(_GLOBAL_STEP))
        return left

    def adopt(self, name: str, path: str, offset: int, checksum: int) -> bool:
        """Read a streamed variable from a file until it is written; return whether that works here.

        Raises:
            CorruptCheckpointError: If the file's bytes fail their checksum.
        """
        return self._variables.adopt(name, path, offset, checksum)

    def read(self, name: str) -> np.ndarray:
        """Return a variable's value by its checkpoint name."""
        return self._variables.read(name)

    def snapshot(self, names: Iterable[str]) -> SessionSnapshot:
        """Return variables as they are now, readable in another thread while steps go on; close it before the session.

        Raises:
            StoreError: If the store has no room for a snapshot, or its last one has not been closed.
        """
        return self._variables.snapshot(names)

    def prepare_snapshot(self, names: Iterable[str]) -> None:
        """Make the memory that a snapshot of these variables takes; from any thread, before the first snapshot."""
        self._variables.prepare_snapshot(names)

    def snapshot_bytes(self, names: Iterable[str]) -> int:
        """Return the host memory that a snapshot takes at most, beside what the last one left for it [B]."""
        return self._variables.snapshot_bytes(names)

    def weights(self) -> Iterator[WeightSpec]:
        """Yield the variables of the Program."""
        yield from self.program.resident
        yield from self.program.streamed

    def close(self) -> None:
        """Release the session and the store."""
        self._session.close()
        self._variables.close()
        store, self._store = self._store, None
        if store is not None:
            store.close()

    def _step_fetches(self) -> list[Any]:
        """Return what a training step fetches beside what the caller asked for."""
        fetches = [self._ops.operation(self.program.step_node)] if self.program.step_node else []
        if self._variables.is_resident(_GLOBAL_STEP):
            fetches.append(self._ops.tensor(f"{GLOBAL_STEP_AFTER}:0"))  # read after everything that changes it
        return fetches

    def _count(self, step: int) -> None:
        if step == self._step:
            self._micro_step += 1
        else:
            self._step, self._micro_step = step, 0

    def _standard_feeds(self, names: frozenset[str], is_step: bool) -> dict[str, np.ndarray]:
        """Return the values of the Program's own placeholders: counters of the step, and the batch."""
        feeds: dict[str, np.ndarray] = {}
        if self._has_step_counters:
            feeds.update(counter_feed(self._step, self._micro_step, self._entropy))
        if self._next_batch is not None and (is_step or self._ops.needs_batch(names)):
            if self._batch is None:
                self._batch = self._next_batch()
            feeds.update(self._batch)
        return feeds


def session_settings(session_config: Any, is_streaming: bool) -> Any:
    """Return the ConfigProto of a Program's session.

    Graph rewriting by TensorFlow's meta optimizer is off, unless a pipelined run asks for a number of its iterations:
    it would fuse differently in the two modes, whose results are to agree to the last bit.
    """
    config = tf.compat.v1.ConfigProto()
    if session_config is not None:
        config.CopyFrom(session_config)
    config.allow_soft_placement = True
    rewriting = config.graph_options.rewrite_options
    if is_streaming or rewriting.meta_optimizer_iterations == rewriting.DEFAULT_NUM_ITERS:
        rewriting.disable_meta_optimizer = True
    if is_streaming and not config.inter_op_parallelism_threads:
        config.inter_op_parallelism_threads = (os.cpu_count() or 1) + _EXTRA_THREADS
        config.use_per_session_threads = True  # the common ones are as many as the process's first session asked for
    return config
