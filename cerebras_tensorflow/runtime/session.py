"""A session that runs a Program. To hooks it looks like a session on the graph that model_fn built."""

from __future__ import annotations

import functools
import os
import secrets
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from types import TracebackType
from typing import Any

import numpy as np
import tensorflow as tf

from cerebras_tensorflow.graph.nodes import GraphDef
from cerebras_tensorflow.graph.program import GLOBAL_STEP_AFTER, Program, WeightSpec
from cerebras_tensorflow.graph.randomness import MOST_MICRO_STEPS, SEEDED_COUNTER, UNSEEDED_COUNTER, counter_feed
from cerebras_tensorflow.runtime.csx.checkpoint_files import OwnersRead, Source
from cerebras_tensorflow.runtime.csx.orders import Order, Orders
from cerebras_tensorflow.runtime.fetches import FetchedGraph, has_node, leaves, op_names, with_values
from cerebras_tensorflow.runtime.host.heap import trim_heap
from cerebras_tensorflow.runtime.inference.shared import InferenceRun, SharedInference
from cerebras_tensorflow.runtime.micro_batches.parts import parts_of_batch
from cerebras_tensorflow.runtime.micro_batches.share import Share
from cerebras_tensorflow.runtime.micro_batches.steps import GradientSums, MicroBatchRuns
from cerebras_tensorflow.runtime.micro_batches.traces import TracedRuns
from cerebras_tensorflow.runtime.repeated_runs import RepeatedRuns
from cerebras_tensorflow.runtime.session_snapshot import SessionSnapshot
from cerebras_tensorflow.runtime.variables import SessionVariables, streamed_names
from cerebras_tensorflow.runtime.weight_store.calls import StoreCalls
from cerebras_tensorflow.runtime.weight_store.interface import WeightStore

_GLOBAL_STEP = "global_step"
_EXTRA_THREADS = 4  # for store calls, which wait for the disk


class ProgramSession(tf.compat.v1.Session):
    """Runs a Program. Fetches and feeds are tensors, ops and names of the original graph.

    Hooks and Savers accept it, because it is a tf.compat.v1.Session. It has more than 20 methods because that class
    has as many. The constructor of that class is not called: it would make a second session, on the original graph.

    `fetches.py` maps fetches and feeds to the Program. `variables.py` sets and reads variables. This class runs steps:
    it adds the batch and the counters, and raises the store's errors.

    Args:
        program: The Program to run.
        graph: The graph that model_fn built. It is not changed.
        train_node: Name of the train op. A run that fetches it is a training step.
        store: The weight store for Program.streamed. None if nothing is streamed.
        session_config: ConfigProto to start from.
        next_batch: Called when a run needs a new batch. Returns tensor name -> array.
        csx: Gives this CSX its part of each step in micro-batches. None: it computes the whole step.
        inference: Lets other CSX compute batches of an evaluation or a prediction. None: there are no others.
        steps_take_batches: Whether a step takes a batch even if nothing in it uses one.
    """

    def __init__(
        self,
        program: Program,
        graph: tf.Graph,
        train_node: str | None = None,
        store: WeightStore | None = None,
        session_config: Any = None,
        next_batch: Callable[[], Mapping[str, np.ndarray]] | None = None,
        csx: Orders | None = None,
        inference: SharedInference | None = None,
        steps_take_batches: bool = True,
    ) -> None:
        self._original = graph
        self._steps_take_batches = steps_take_batches
        self._inference = inference
        self.program = program
        self._train_node = train_node
        self._store = store
        self._calls = StoreCalls(store) if store is not None else None
        self._next_batch = next_batch
        self._parts: list[Mapping[str, np.ndarray]] = []  # micro-batches of the current batch, or that batch
        graph_def = self._calls.bind(program.graph_def) if self._calls else program.graph_def
        bind = self._calls.bind if self._calls else lambda part: part
        plan = program.micro_batches
        self._csx = csx or (Orders(Share.of(plan, 0)) if plan is not None else None)
        self._sums: GradientSums | None = None
        if plan is not None and self._csx is not None:
            across = self._csx.across
            self._sums = GradientSums(plan, store, self._csx.share, None if across is None else across.buffers)
        if self._sums is not None:
            graph_def = self._sums.bind(graph_def)
        self._ops = FetchedGraph(program, graph_def, graph, streamed_names(program), bind)
        settings = session_settings(session_config, store is not None)
        self._session = tf.compat.v1.Session(graph=self._ops.graph, config=settings)
        self._steps = RepeatedRuns(self._session, trim_heap if store is not None else lambda: None)
        self._variables = SessionVariables(program, self._ops, self._session, store)
        self._has_step_counters = has_node(self._ops.graph, SEEDED_COUNTER)
        self._entropy = secrets.randbits(63)
        self._micro_batches: MicroBatchRuns | None = None
        if plan is not None and self._sums is not None and self._csx is not None:
            self._micro_batches = MicroBatchRuns(
                plan,
                self._sums,
                self._ops.carried,
                self._ops.placeholders,
                self._csx.share,
                self._csx.across,
            )
        self._entered: list[ExitStack] = []
        self._mapping = threading.Lock()
        self._step = 0
        self._micro_step = 0
        self._is_updating = False
        if store is not None:
            trim_heap()

    def __del__(self) -> None:
        """Do nothing: the inner TensorFlow session cleans up."""

    def __enter__(self) -> ProgramSession:
        context = ExitStack()
        context.enter_context(self._original.as_default())
        context.enter_context(self.as_default())
        self._entered.append(context)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._entered.pop().close()
        self.close()

    @property
    def graph(self) -> tf.Graph:
        """The graph that model_fn built."""
        return self._original

    @property
    def graph_def(self) -> Any:
        """The graph that model_fn built, as a GraphDef."""
        return self._original.as_graph_def(add_shapes=True)

    @property
    def sess_str(self) -> str:
        """The target of the session, which hooks read."""
        return str(self._session.sess_str)

    @property
    def store(self) -> WeightStore | None:
        """The weight store; None if nothing is streamed."""
        return self._store

    @property
    def global_step(self) -> int:
        """Value of the global step after the last run."""
        return self._step

    @property
    def is_between_steps(self) -> bool:
        """Whether the variables have the values after `global_step`; False if a step failed in its update."""
        return not self._is_updating

    def run(self, fetches: Any, feed_dict: Any = None, options: Any = None, run_metadata: Any = None) -> Any:
        """Run the Program, like tf.compat.v1.Session.run.

        Raises:
            CompileError: If a fetch needs a streamed variable for something that the store cannot do.
            StoreError: If the weight store failed.
        """
        with self._mapping:  # queue runners call this method in their threads
            self._variables.flush()
            mapped = self._ops.mapped(fetches)
            feeds = {self._ops.feed_key(key): value for key, value in (feed_dict or {}).items()}
        fetched = list(leaves(mapped))
        names = frozenset(op_names(fetched))
        is_step = self._train_node is not None and self._train_node in names
        extra = self._step_fetches if is_step else []
        traces = TracedRuns(self._session, options, run_metadata)
        if self._store is not None and (is_step or self._train_node is None):
            self._store.between_steps()
        try:
            known = self._read_before_step(fetched, feeds) if is_step else {}
            feeds = {**known, **feeds}
            if is_step and self._micro_batches is not None:
                feeds = self._run_micro_batches(self._micro_batches, [*fetched, *extra], feeds, traces.run)
            else:
                standard = self._standard_feeds(names, is_step)  # takes the batch that the others compute
                known = known or self._values_of_others(fetched, names, feeds)
                feeds = {**standard, **known, **feeds}
            self._is_updating = self._is_updating or is_step
            # MonitoredSession always gives options and run_metadata. Without options, run_metadata stays empty.
            is_repeated = is_step and (options is None or not options.ByteSize())
            run_once = functools.partial(self._session.run, options=options, run_metadata=run_metadata)
            result, after = (self._steps.run if is_repeated else run_once)((mapped, extra), feeds)
            traces.add_to_update()
        except tf.errors.OpError as error:
            original = self._calls.take_error() if self._calls else None
            original = original or (self._sums.take_error() if self._sums else None)
            if original is not None:
                raise original from error
            if is_step and isinstance(error, tf.errors.OutOfRangeError) and self._variables.is_resident(_GLOBAL_STEP):
                self._step = int(self.read(_GLOBAL_STEP))  # a step may count before it finds the end of the input
            raise
        self._is_updating = self._is_updating and not is_step
        if self._csx is not None:
            self._end_run(self._csx, names, is_step)
        if is_step or self._train_node is None:
            self._parts = []  # without a train op, every run that needs a batch takes the next one
        if is_step and self._variables.is_resident(_GLOBAL_STEP):
            self._count(int(after[-1]))
        elif not is_step:
            self._count_draws(names)
        return with_values(mapped, result, known) if known else result

    def load(self, name: str, value: np.ndarray, source: Source | None = None) -> None:
        """Set a variable by its checkpoint name.

        Args:
            name: The variable.
            value: Its value. TensorFlow may take over its memory, so that an update of the variable writes there.
            source: Where a checkpoint has this value. Other CSX may read it there.
        """
        self._variables.load(name, value)
        self._note_change([name])
        for others in (self._csx, self._inference):
            if others is not None and source is not None:
                others.note_source(name, source)
        if name == _GLOBAL_STEP and self._variables.is_resident(name):
            self._step = int(value)

    def owners_read(self) -> OwnersRead:
        """Return what sets the weights that other CSX own from a checkpoint."""
        return self._csx.owners_read() if self._csx is not None else OwnersRead()

    def assign(
        self, graph_def: GraphDef, tensors: Mapping[str, str], feeds: Mapping[str, np.ndarray]
    ) -> tuple[str, ...]:
        """Set variables to tensors of another graph. Return the names left, see `SessionVariables.assign`."""
        left = self._variables.assign(graph_def, tensors, feeds)
        self._note_change(tensors)
        if _GLOBAL_STEP in tensors and _GLOBAL_STEP not in left:
            self._step = int(self.read(_GLOBAL_STEP))
        return left

    def adopt(self, name: str, path: str, offset: int, checksum: int) -> bool:
        """Read a streamed variable from a file until its first write. Return False if the store cannot do that.

        Raises:
            CorruptCheckpointError: If the file's bytes fail their checksum.
        """
        self._note_change([name])
        return self._variables.adopt(name, path, offset, checksum)

    def read(self, name: str) -> np.ndarray:
        """Return a variable's value by its checkpoint name."""
        return self._variables.read(name)

    def snapshot(self, names: Iterable[str]) -> SessionSnapshot:
        """Return a snapshot of variables. Another thread can read it during later steps. Close it before the session.

        Raises:
            StoreError: If the store has no room for a snapshot, or its last snapshot is still open.
        """
        names = set(names)
        return self._variables.snapshot(names, self._csx.copies_elsewhere(names) if self._csx is not None else None)

    def copy(self, names: Iterable[str]) -> tuple[Mapping[str, np.ndarray], Callable[[], object]]:
        """Return copies of resident variables for a snapshot of the first CSX, and what frees them."""
        copies = self._variables.copy(set(names))
        return copies, functools.partial(self._variables.recycle, copies)

    def prepare_snapshot(self, names: Iterable[str]) -> None:
        """Allocate the memory for a snapshot of these variables. Call it in any thread, before the first snapshot."""
        self._variables.prepare_snapshot(self._copied_here(names, is_kept=False))

    def snapshot_bytes(self, names: Iterable[str]) -> int:
        """Return the most host memory that a snapshot allocates [B]. It uses the memory of the last one again."""
        return self._variables.snapshot_bytes(self._copied_here(names, is_kept=True))

    def _copied_here(self, names: Iterable[str], is_kept: bool) -> Iterable[str]:
        return set(names) - (self._csx.copied_elsewhere(is_kept) if self._csx is not None else frozenset())

    def weights(self) -> Iterator[WeightSpec]:
        """Yield the variables of the Program."""
        yield from self.program.resident
        yield from self.program.streamed

    def close(self) -> None:
        """Release the session and the store, and end the other CSX."""
        for others in (self._csx, self._inference):
            if others is not None:
                others.close()
        self._session.close()
        self._variables.close()
        if self._sums is not None:
            self._sums.close()
        store, self._store = self._store, None
        if store is not None:
            store.close()

    def make_callable(self, fetches: Any, feed_list: Any = None, accept_options: bool = False) -> Callable[..., Any]:
        """Return a function that takes the values of feed_list and runs the fetches, like tf.compat.v1.Session."""
        keys = list(feed_list or ())

        def call(*values: Any, **options: Any) -> Any:
            return self.run(fetches, dict(zip(keys, values, strict=True)), **options if accept_options else {})

        return call

    def list_devices(self) -> Any:
        """Return the devices of the TensorFlow session."""
        return self._session.list_devices()

    def add(self, extension: GraphDef) -> None:
        """Add ops that the session of the first CSX has added."""
        self._ops.add(extension)

    def _end_run(self, csx: Orders, names: frozenset[str], is_step: bool) -> None:
        """Tell the store and the other CSX that a run of some ops has ended."""
        if is_step and self._store is not None:
            self._store.update_ended()
        csx.run_ended(is_step, self._ops.may_write(names, is_step))

    def _note_change(self, names: Iterable[str]) -> None:
        for others in (self._csx, self._inference):
            if others is not None:
                others.variables_changed(names)

    def _read_before_step(self, fetched: Sequence[Any], feeds: Mapping[Any, Any]) -> Mapping[str, Any]:
        """Return name -> value, before the step, of tensors that hooks fetch and that only read variables.

        The caller feeds these values. Computed in the same run as the step, a tensor could have the value from before
        the step or from after it.
        """
        tensors = [tensor for tensor in fetched if isinstance(tensor, tf.Tensor) and tensor.dtype.is_numpy_compatible]
        beside = [tensor for tensor in tensors if self._ops.is_beside_the_step(tensor)]
        values = self._session.run(beside, feeds) if beside else []
        return {tensor.name: value for tensor, value in zip(beside, values, strict=True)}

    @functools.cached_property
    def _step_fetches(self) -> list[Any]:
        """What a training step fetches in addition to the caller's fetches."""
        fetches = [self._ops.operation(self.program.step_node)] if self.program.step_node else []
        if self._variables.is_resident(_GLOBAL_STEP):
            fetches.append(self._ops.tensor(f"{GLOBAL_STEP_AFTER}:0"))  # read after everything that changes it
        return fetches

    def _count(self, step: int) -> None:
        if step == self._step:
            self._micro_step += 1
        else:
            self._step, self._micro_step = step, 0

    def _count_draws(self, names: frozenset[str]) -> None:
        """Count a run that is no training step: without a train op, the next one draws other numbers."""
        if self._train_node is None and _draws(self._ops, names):
            self._micro_step = (self._micro_step + 1) % MOST_MICRO_STEPS
        if self._variables.is_resident(_GLOBAL_STEP) and self._ops.may_assign(names, _GLOBAL_STEP):
            self._step = int(self.read(_GLOBAL_STEP))

    def _standard_feeds(self, names: frozenset[str], is_step: bool) -> dict[str, np.ndarray]:
        """Return the feeds of the Program's own placeholders: the step counters and the batch."""
        feeds = self._counters()
        always = is_step and self._steps_take_batches
        if self._next_batch is not None and (always or self._ops.needs_batch(names)):
            feeds.update(self._current_parts()[0])
        return feeds

    def _values_of_others(
        self, fetched: Sequence[Any], names: frozenset[str], feeds: Mapping[Any, Any]
    ) -> Mapping[str, np.ndarray]:
        """Return what other CSX have computed for the batch of a run that is no training step."""
        if self._inference is None:
            return {}
        takes_batch = self._next_batch is not None and self._ops.needs_batch(names)
        counters = functools.partial(self._counters_of_later, _draws(self._ops, names))
        run = InferenceRun(fetched, self._ops, takes_batch, not feeds, counters, self._variables.read)
        return self._inference.feeds(run)

    def _counters(self, micro_batch: int = 0) -> dict[str, np.ndarray]:
        """Return the feeds of the counters that random ops draw from."""
        if not self._has_step_counters:
            return {}
        return counter_feed(self._step, self._micro_step, self._entropy, micro_batch)

    def _counters_of_later(self, draws: bool, num_runs: int) -> dict[str, np.ndarray]:
        """Return the feeds of the counters for a run that follows after so many runs which draw, or do not draw."""
        if not self._has_step_counters:
            return {}
        micro_step = (self._micro_step + num_runs * draws) % MOST_MICRO_STEPS
        return counter_feed(self._step, micro_step, self._entropy)

    def _current_parts(self) -> list[Mapping[str, np.ndarray]]:
        """Return the micro-batches of the current step, or its batch."""
        if not self._parts and self._next_batch is not None:
            plan = self.program.micro_batches
            times = self._csx.batches_per_step if self._csx is not None else 1
            count = plan.count // times if plan is not None else 1
            batches = [self._next_batch() for _ in range(times)]
            self._parts = [part for batch in batches for part in parts_of_batch(batch, count)]
        return self._parts

    def _run_micro_batches(
        self,
        runs: MicroBatchRuns,
        fetched: Sequence[Any],
        feeds: Mapping[Any, Any],
        run: Callable[[Sequence[Any], Mapping[Any, Any]], Sequence[np.ndarray]],
    ) -> dict[Any, np.ndarray]:
        """Run the micro-batches of a step, and return the feeds of the update."""
        assert self._csx is not None, "a step in micro-batches has orders"
        own = runs.wanted(fetched)
        parts = self._current_parts()  # the input may end here, before other CSX hear of the step
        self._csx.before_step(self._ops.extensions, self.read)
        order = self._csx.of_step(Order(own, parts, feeds, (self._step, self._micro_step, self._entropy)))
        step, self._micro_step, self._entropy = order.counters
        assert step == self._step, f"the first CSX is at step {step}, this one at step {self._step}"
        values = runs.feeds_of_update(order.wanted, order.parts, order.feeds, self._counters, run)
        if self._store is not None:
            self._store.update_begins()
        taken = {key: value for key, value in values.items() if key in own or key in runs.names_of_totals}
        return {**self._counters(), **order.feeds, **taken}


def _draws(ops: FetchedGraph, names: frozenset[str]) -> bool:
    """Whether any op of these names depends on random numbers."""
    return not ops.placeholders(names).isdisjoint((SEEDED_COUNTER, UNSEEDED_COUNTER))


def session_settings(session_config: Any, is_streaming: bool) -> Any:
    """Return the ConfigProto of a Program's session.

    TensorFlow's meta optimizer is off, because it would fuse ops differently in the two modes and change the last bits
    of results. A pipelined run can turn it on by setting the number of its iterations.

    In weight streaming TensorFlow builds and places only the ops of each run. It would keep a second graph of all ops.
    """
    config = tf.compat.v1.ConfigProto()
    if session_config is not None:
        config.CopyFrom(session_config)
    config.allow_soft_placement = True
    rewriting = config.graph_options.rewrite_options
    if is_streaming or rewriting.meta_optimizer_iterations == rewriting.DEFAULT_NUM_ITERS:
        rewriting.disable_meta_optimizer = True
    config.graph_options.place_pruned_graph |= is_streaming
    if is_streaming and not config.inter_op_parallelism_threads:
        config.inter_op_parallelism_threads = (os.cpu_count() or 1) + _EXTRA_THREADS
        config.use_per_session_threads = True  # the first session sets the size of the shared pool
    return config
