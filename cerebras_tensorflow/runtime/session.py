"""A session that runs a Program while it looks, to hooks, like a session on the graph that model_fn built."""

from __future__ import annotations

import copy
import os
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from cerebras_tensorflow.errors import CompileError
from cerebras_tensorflow.graph.nodes import GraphDef, parse_input, prune
from cerebras_tensorflow.graph.program import (
    GLOBAL_STEP_AFTER,
    Program,
    WeightSpec,
    assign_name,
    dtype_from_name,
    read_name,
    value_name,
)
from cerebras_tensorflow.graph.randomness import SEEDED_COUNTER, counter_feed
from cerebras_tensorflow.runtime.host.heap import trim_heap
from cerebras_tensorflow.runtime.session_snapshot import ResidentCopies, SessionSnapshot
from cerebras_tensorflow.runtime.weight_store.calls import StoreCalls
from cerebras_tensorflow.runtime.weight_store.interface import WeightStore

_TOGETHER_BYTES = 64 << 20  # of values that are set in one run
_INITIAL = "cs_initial"  # scope of the ops of `assign`
_EXTRA_THREADS = 4  # for store calls that wait for the disk while the cores compute


class ProgramSession:
    """Runs a Program. Fetches and feeds are given by the original graph's tensors, ops and names.

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
        self._program_graph = tf.Graph()
        graph_def = self._calls.bind(program.graph_def) if self._calls else program.graph_def
        with self._program_graph.as_default():
            tf.graph_util.import_graph_def(graph_def, name="")
        self._session = tf.compat.v1.Session(
            graph=self._program_graph, config=session_settings(session_config, store is not None)
        )
        self._entropy = secrets.randbits(63)
        self._step = 0
        self._micro_step = 0
        self._has_step_counters = has_node(self._program_graph, SEEDED_COUNTER)
        self._resident = {spec.name: index for index, spec in enumerate(program.variables)}
        stored = program.streamed if program.needs_store else ()
        self._streamed = {spec.name: index for index, spec in enumerate(stored)}
        self._global_step_index = self._resident.get("global_step")
        self._feed_names: dict[frozenset[str], bool] = {}
        self._pending: dict[int, np.ndarray] = {}
        self._pending_bytes = 0
        self._copies = ResidentCopies(self._program_graph)
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
        self._flush()
        if self._store is not None:
            self._store.between_steps()
        mapped = self._map(fetches)
        names = frozenset(_node_names(mapped))
        is_step = self._train_node is not None and self._train_node in names
        extra = [self._operation(self.program.step_node)] if is_step and self.program.step_node else []
        if is_step and self._global_step_index is not None:
            extra.append(self._after_step())
        feeds = {self._feed_key(key): value for key, value in (feed_dict or {}).items()}
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
        if is_step and self._global_step_index is not None:
            self._count(int(after[-1]))
        return result

    def load(self, name: str, value: np.ndarray) -> None:
        """Set a variable by its checkpoint name. Small ones are set together: TensorFlow prepares each kind of run."""
        if name in self._streamed:
            assert self._store is not None
            spec = self.program.streamed[self._streamed[name]]
            value = np.ascontiguousarray(value, dtype_from_name(spec.dtype)).reshape(spec.shape)
            self._store.write(self._streamed[name], value)
            return
        index = self._resident[name]
        self._pending[index] = value
        self._pending_bytes += np.asarray(value).nbytes
        if self._pending_bytes > _TOGETHER_BYTES:
            self._flush()
        if index == self._global_step_index:
            self._step = int(value)

    def assign(
        self, graph_def: GraphDef, tensors: Mapping[str, str], feeds: Mapping[str, np.ndarray]
    ) -> tuple[str, ...]:
        """Set variables to tensors of another graph, in one run; no value passes through Python.

        Args:
            graph_def: That graph; it becomes part of this session's.
            tensors: Checkpoint name -> name of the tensor.
            feeds: Name of a tensor -> value, for the run.

        Returns:
            The names that were not set, for `load`: weights in the store.
        """
        held = {name: self._resident[name] for name in tensors if name in self._resident}
        if held:
            roots = [tensors[name].split(":")[0] for name in held]
            wanted = graph_def if len(held) == len(tensors) else prune(graph_def, roots)
            present = {f"{node.name}:0" for node in wanted.node}
            with self._program_graph.as_default():
                tf.graph_util.import_graph_def(wanted, name=_INITIAL)
                values = {name: self._program_graph.get_tensor_by_name(f"{_INITIAL}/{tensors[name]}") for name in held}
                handles = {name: self._operation(assign_name(index)).inputs[0] for name, index in held.items()}
                ops = [tf.raw_ops.AssignVariableOp(resource=handles[name], value=values[name]) for name in held]
            fed = {f"{_INITIAL}/{name}": value for name, value in feeds.items() if name in present}
            self._session.run(ops, fed)
        if self._global_step_index in held.values():
            self._step = int(self.read("global_step"))
        return tuple(name for name in tensors if name not in held)

    def _flush(self) -> None:
        """Set the variables whose values have been held back."""
        if self._pending:
            pending, self._pending, self._pending_bytes = self._pending, {}, 0
            feeds = {f"{value_name(index)}:0": value for index, value in pending.items()}
            self._session.run([self._operation(assign_name(index)) for index in pending], feeds)

    def adopt(self, name: str, path: str, offset: int, checksum: int) -> bool:
        """Let a streamed variable lie in a file, as it is there, until it is written; return whether that works here.

        Raises:
            CorruptCheckpointError: If the file's bytes fail their checksum.
        """
        if self._store is None or name not in self._streamed:
            return False
        return self._store.adopt(self._streamed[name], path, offset, checksum)

    def read(self, name: str) -> np.ndarray:
        """Return a variable's value by its checkpoint name."""
        if name in self._streamed:
            assert self._store is not None
            return self._store.read(self._streamed[name])
        self._flush()
        value = self._session.run(f"{read_name(self._resident[name])}:0")
        return np.asarray(value)

    def snapshot(self, names: Iterable[str]) -> SessionSnapshot:
        """Return variables as they are now, readable in another thread while steps go on; close it before the session.

        Resident variables are copied, into the memory of the last snapshot if that has been closed; for streamed ones
        see runtime/store_snapshot.py.

        Raises:
            StoreError: If the store has no room for a snapshot, or its last one has not been closed.
        """
        wanted = set(names)
        streamed = {index: self.program.streamed[index] for name, index in self._streamed.items() if name in wanted}
        held = self._store.snapshot() if self._store is not None and streamed else None
        if held is not None:
            for index in range(len(self.program.streamed), len(self.program.stored)):
                held.release(index)  # values of the step that is over
        try:
            self._flush()
            tensor = self._program_graph.get_tensor_by_name
            values = {name: tensor(f"{read_name(index)}:0") for name, index in self._resident.items() if name in wanted}
            resident = self._copies.take(self._session, values)
        except BaseException:
            if held is not None:
                held.close()
            raise
        return SessionSnapshot(resident, streamed, held, self._copies.recycle)

    def prepare_snapshot(self, names: Iterable[str]) -> None:
        """Make the memory that a snapshot of these variables takes; from any thread, before the first snapshot."""
        wanted = set(names)
        self._copies.prepare(spec for spec in self.program.variables if spec.name in wanted)

    def snapshot_bytes(self, names: Iterable[str]) -> int:
        """Return the host memory that a snapshot takes at most, beside what the last one left for it [B]."""
        wanted = set(names)
        resident = sum(spec.num_bytes for spec in self.program.variables if spec.name in wanted)
        return max(resident - self._copies.kept_bytes, 0) + (
            self._store.snapshot_bytes if self._store is not None else 0
        )

    def weights(self) -> Iterator[WeightSpec]:
        """The variables of the Program."""
        yield from self.program.resident
        yield from self.program.streamed

    def close(self) -> None:
        """Release the session and the store."""
        self._session.close()
        self._copies.drop()
        store, self._store = self._store, None
        if store is not None:
            store.close()

    def _count(self, step: int) -> None:
        if step == self._step:
            self._micro_step += 1
        else:
            self._step, self._micro_step = step, 0

    def _after_step(self) -> Any:
        """A read of the global step that comes after everything that changes it."""
        return self._program_graph.get_tensor_by_name(f"{GLOBAL_STEP_AFTER}:0")

    def _standard_feeds(self, names: frozenset[str], is_step: bool) -> dict[str, np.ndarray]:
        feeds: dict[str, np.ndarray] = {}
        if self._has_step_counters:
            feeds.update(counter_feed(self._step, self._micro_step, self._entropy))
        if self._next_batch is not None and (is_step or self._needs_batch(names)):
            if self._batch is None:
                self._batch = self._next_batch()
            feeds.update(self._batch)
        return feeds

    def _needs_batch(self, names: frozenset[str]) -> bool:
        if names not in self._feed_names:
            self._feed_names[names] = any(
                self._program_graph.get_operation_by_name(name).type == "Placeholder" and name.startswith("cs_input/")
                for name in _needed(self._program_graph, names)
            )
        return self._feed_names[names]

    def _feed_key(self, key: Any) -> Any:
        return key if isinstance(key, str) else key.name

    def _operation(self, name: str | None) -> Any:
        return self._program_graph.get_operation_by_name(str(name))

    def _map(self, fetches: Any) -> Any:
        """Replace the original graph's tensors and ops by the Program's of the same name."""
        if isinstance(fetches, dict):
            mapped = copy.copy(fetches)  # of the same type, which may need more than its items
            mapped.update((key, self._map(value)) for key, value in fetches.items())
            return mapped
        if isinstance(fetches, tuple) and hasattr(fetches, "_fields"):
            return type(fetches)(*(self._map(value) for value in fetches))
        if isinstance(fetches, (list, tuple)):
            return type(fetches)(self._map(value) for value in fetches)
        if fetches is None:
            raise TypeError("Fetch argument None has invalid type <class 'NoneType'>")
        if isinstance(fetches, tf.SparseTensor):
            return tf.SparseTensor(*(self._map(p) for p in (fetches.indices, fetches.values, fetches.dense_shape)))
        if isinstance(fetches, tf.IndexedSlices):
            return tf.IndexedSlices(self._map(fetches.values), self._map(fetches.indices))
        element = self.graph.as_graph_element(fetches)
        name = element.name if isinstance(element, tf.Operation) else element.op.name
        if isinstance(element, tf.Tensor) and element.dtype == tf.resource and name in self._resident:
            # A variable by its name, as when that was its value: TensorFlow 2.16 to 2.18 cannot fetch the handle.
            return self._program_graph.get_tensor_by_name(f"{read_name(self._resident[name])}:0")
        if not has_node(self._program_graph, name):
            self._extend(name)
        return self._program_graph.as_graph_element(element.name)

    def _extend(self, name: str) -> None:
        """Add to the Program what a fetch needs beyond it (a hook's own op, made after the step was compiled).

        Raises:
            CompileError: If it needs a weight that is in the store.
        """
        wanted = prune(self.graph.as_graph_def(), [name])
        missing = [node for node in wanted.node if not has_node(self._program_graph, node.name)]
        streamed = set(self._streamed)
        for node in missing:
            taken = [text for text in node.input if not text.startswith("^")]
            held = [text for text in taken if text in streamed]
            if held or (node.op == "VarHandleOp" and node.attr["shared_name"].s.decode() in streamed):
                raise CompileError(
                    f"{name} needs {(held or [node.name])[0]}, which is streamed and not in memory between its uses. "
                    "Read it from a checkpoint, or raise min_stream_bytes to keep it resident."
                )
        names = {node.name for node in missing}
        known: dict[str, Any] = {}
        for node in missing:
            for endpoint in map(parse_input, node.input):
                if endpoint.node in names:
                    continue
                operation = self._operation(endpoint.node)
                known[str(endpoint)] = operation if endpoint.is_control else operation.outputs[endpoint.port]
        part = GraphDef(versions=wanted.versions, library=wanted.library)
        part.node.extend(missing)
        with self._program_graph.as_default():
            tf.graph_util.import_graph_def(part, input_map=known, name="")


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


def has_node(graph: tf.Graph, name: str) -> bool:
    """Whether a graph has an op of that name."""
    try:
        graph.get_operation_by_name(name)
    except KeyError:
        return False
    return True


def _node_names(fetches: Any) -> Iterator[str]:
    if isinstance(fetches, dict):
        for value in fetches.values():
            yield from _node_names(value)
    elif isinstance(fetches, (list, tuple)):
        for value in fetches:
            yield from _node_names(value)
    elif isinstance(fetches, tf.Operation):
        yield fetches.name
    elif isinstance(fetches, tf.Tensor):
        yield fetches.op.name
    else:
        yield from _node_names([part for part in (fetches.values, fetches.indices) if part is not None])


def _needed(graph: tf.Graph, names: frozenset[str]) -> set[str]:
    """Names of all ops that the given ones need."""
    names_needed: set[str] = set()
    pending = [graph.get_operation_by_name(name) for name in names]
    while pending:
        operation = pending.pop()
        if operation.name not in names_needed:
            names_needed.add(operation.name)
            pending.extend(tensor.op for tensor in operation.inputs)
            pending.extend(operation.control_inputs)
    return names_needed
