"""One training run, from the checkpoint it starts at to the one it ends with."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from cerebras_tensorflow.compiler.step import Step
from cerebras_tensorflow.config import env
from cerebras_tensorflow.config.env import WEIGHT_STREAMING
from cerebras_tensorflow.errors import CorruptCheckpointError
from cerebras_tensorflow.estimator import summaries
from cerebras_tensorflow.estimator.execution import restrictions
from cerebras_tensorflow.estimator.execution import store_choice as weight_stores
from cerebras_tensorflow.estimator.execution import target as running
from cerebras_tensorflow.estimator.execution.target import Compiled, Target
from cerebras_tensorflow.estimator.mode_keys import ModeKeys
from cerebras_tensorflow.estimator.model.inputs import InputPipeline, first_dim
from cerebras_tensorflow.estimator.model.model_call import (
    Model,
    call_model_fn,
    graph_semantics,
    local_init_of,
    variable_name,
)
from cerebras_tensorflow.estimator.training import checkpoints
from cerebras_tensorflow.estimator.training.checkpoints import CheckpointSaver
from cerebras_tensorflow.estimator.training.graph_files import GraphFiles
from cerebras_tensorflow.estimator.training.hooks import CheckpointHook, TrainingHook
from cerebras_tensorflow.estimator.training.initialize import initial_rows, initialize
from cerebras_tensorflow.estimator.training.signals import StopSignals
from cerebras_tensorflow.estimator.training.sparsity import Sparsifier, SparsityHook
from cerebras_tensorflow.estimator.training.trace_hook import TraceHook
from cerebras_tensorflow.estimator.training.warm_start import WarmStartSettings
from cerebras_tensorflow.logs import run_log
from cerebras_tensorflow.perf import performance
from cerebras_tensorflow.perf.meter import Meter
from cerebras_tensorflow.runtime.session import ProgramSession
from cerebras_tensorflow.runtime.weight_store.interface import WeightStore
from cerebras_tensorflow.saver.files.atomic import FolderLock
from cerebras_tensorflow.saver.model_dir import retention

train_v1 = tf.compat.v1.train
REWRITES = 1  # of TensorFlow's meta optimizer; the protobuf calls it ONE


@dataclass(frozen=True)
class TrainingRequest:
    """What the caller of CerebrasEstimator.train asked for.

    Attributes:
        model_fn, input_fn, params, config, model_dir, compile_dir, warm_start: The estimator's.
        hooks, listeners: The caller's.
        steps: Steps to take from where the run starts; None: see last_step.
        last_step: Global step at which to stop; None: when the input ends.
        is_cerebras: Whether labels of -1 give no loss and no gradient, and the run is saved whatever the interval.
        sparsifier: Chooses weights that are zero after each step; None: all stay.
    """

    model_fn: Callable[..., Any]
    input_fn: Callable[..., Any]
    params: Any
    config: Any
    model_dir: str
    compile_dir: str
    warm_start: WarmStartSettings | None
    hooks: Sequence[Any]
    listeners: Sequence[Any]
    steps: int | None
    last_step: int | None
    is_cerebras: bool = False
    sparsifier: Sparsifier | None = None


def train(request: TrainingRequest, target: Target) -> None:
    """Train until the last step, the end of the input or a signal.

    Raises:
        NanLossError: If the loss is not finite; the last checkpoint stays.
        SystemExit: 130 or 143 after Ctrl-C or SIGTERM, when the run has been saved.
    """
    start = checkpoints.newest_whole(request.model_dir)
    first_step = checkpoints.step_in(start) if start else 0
    last_step = request.last_step
    if request.steps is not None:
        last_step = first_step + request.steps
    if last_step is not None and first_step >= last_step:
        run_log.info("Skipping training since max_steps has already saved: %s is at step %d.", start, first_step)
        return
    with FolderLock(request.model_dir), StopSignals() as signals:
        retention.clean_up(request.model_dir)
        _Run(request, target, start, last_step, signals).run()
    signals.exit_if_received()


@dataclass(frozen=True)
class TrainingOps:
    """What a training run asks for beside the train op and the loss.

    Attributes:
        summary: Merged summaries, the loss among them.
        local_init: Initializes what no checkpoint holds.
        step: The step to compile.
    """

    summary: Any
    local_init: Any
    step: Step


def training_ops(model: Model) -> TrainingOps:
    """Add to a model's graph what a training run needs."""
    with model.graph.as_default(), graph_semantics():
        if not summaries.are_enabled():
            model.graph.clear_collection("summaries")
        names = {tensor.op.name for tensor in model.graph.get_collection("summaries")}
        if not any(name.split("/")[-1] == "loss" for name in names):
            tf.compat.v1.summary.scalar("loss", model.spec.loss)
        summary = tf.compat.v1.summary.merge_all()
    local_init = local_init_of(model)
    return TrainingOps(summary, local_init, model.step([model.spec.loss, local_init, summary]))


class _Run:
    """The objects of one training run."""

    def __init__(
        self,
        request: TrainingRequest,
        target: Target,
        start: str | None,
        last_step: int | None,
        signals: StopSignals,
    ) -> None:
        self._request = request
        self._target = target
        self._start = start
        self._last_step = last_step
        self._signals = signals
        self._session: ProgramSession | None = None
        self._compiled: Compiled | None = None
        self._store: WeightStore | None = None
        self._programming_s = 0.0
        self._session_config = running.session_config_of(request.config, target.mode)  # before any session
        if not request.is_cerebras:  # whose two modes need not agree to the last bit: TensorFlow may fuse ops
            self._session_config.graph_options.rewrite_options.meta_optimizer_iterations = REWRITES
        self._pipeline = InputPipeline(
            request.input_fn,
            request.params,
            ModeKeys.TRAIN,
            request.config,
            request.config.tf_random_seed,
            lambda: signals.received is not None,
        )
        self._meter = Meter(lambda: self._pipeline.waited_s)

    def run(self) -> None:
        """Run it."""
        try:
            self._run()
        except CorruptCheckpointError as error:
            # It was read through before the input was set to its step; going on with another would mix the two up.
            raise CorruptCheckpointError(
                f"{error} The run stops here; started again, it looks for a whole one."
            ) from error
        finally:
            self._pipeline.close()
            if self._session is not None:
                self._session.close()
            elif self._store is not None:
                self._store.close()

    def _run(self) -> None:
        is_streaming = self._target.mode == WEIGHT_STREAMING
        if is_streaming:
            run_log.info("Running the TF Client")
        model = self._call_model()
        run_log.info("Done calling model_fn.")
        restrictions.check_training(model, self._request.hooks, self._target.is_cs, self._target.mode)
        saver = CheckpointSaver(self._request.model_dir, self._target.mode, model.saved_names(), self._request.config)
        with saver:
            watch = self._train(model, saver)
        self._finish(watch)

    def _train(self, model: Model, saver: CheckpointSaver) -> TrainingHook:
        """Run the steps; return the hook that has watched them."""
        is_streaming = self._target.mode == WEIGHT_STREAMING
        initial: str | None = None
        if self._start is None and is_streaming:
            self._prepare(model, training_ops(model))
            begin = time.perf_counter()
            initial = saver.prewrite(initial_rows(model, self._request.warm_start))
            run_log.info("Completed weight initialization on CPU in: %.3f seconds", time.perf_counter() - begin)
            model = self._call_model()
        ops = training_ops(model)
        if self._compiled is None:
            self._prepare(model, ops)
        watch = TrainingHook(
            model.spec.loss,
            self._last_step,
            self._request.config.log_step_count_steps,
            self._target.mode,
            self._meter,
            self._running_session,
            self._signals,
            lambda: self._newest_checkpoint(saver),
        )
        with model.graph.as_default():
            hooks = self._hooks(model, ops, saver, watch)
            creator = running.SessionCreator(lambda: self._create_session(model, ops, saver, initial))
            with train_v1.MonitoredSession(session_creator=creator, hooks=hooks) as session:
                while not session.should_stop():
                    session.run([model.spec.train_op, model.spec.loss])
        return watch

    def _prepare(self, model: Model, ops: TrainingOps) -> None:
        """Compile the step and open its store: what can be refused is refused before anything is written."""
        request = self._request
        compiled = running.compile_model(model, ops.step, self._target.mode, request.config, request.compile_dir)
        settings = running.cs_config_of(request.config)
        self._store = weight_stores.open_store(compiled.program, settings, request.model_dir, is_training=True)
        self._compiled = compiled

    def _newest_checkpoint(self, saver: CheckpointSaver) -> str | None:
        saver.wait()
        return checkpoints.newest_whole(self._request.model_dir)

    def _call_model(self) -> Model:
        request = self._request
        return call_model_fn(
            request.model_fn,
            self._pipeline,
            ModeKeys.TRAIN,
            request.params,
            request.config,
            request.is_cerebras,
        )

    def _hooks(self, model: Model, ops: TrainingOps, saver: CheckpointSaver, watch: TrainingHook) -> list[Any]:
        config = self._request.config
        hooks: list[Any] = [watch]
        if self._request.sparsifier is not None:
            saved = model.saved_names()
            trainable = {variable_name(variable) for variable in model.graph.get_collection("trainable_variables")}
            shapes = {name: tuple(variable.shape.as_list()) for name, variable in saved.items()}
            chosen_from = [name for name in saved if name in trainable]
            sparsity = SparsityHook(self._request.sparsifier, chosen_from, shapes, self._running_session, self._start)
            saver.write_masks = sparsity.write_masks
            hooks.append(sparsity)
        trace_step = env.read().trace_step
        if trace_step:
            hooks.append(TraceHook(trace_step, os.path.join(self._request.model_dir, "trace")))
        if self._request.is_cerebras or config.save_checkpoints_steps or config.save_checkpoints_secs:
            hooks.append(
                CheckpointHook(
                    saver,
                    config.save_checkpoints_steps or 0,
                    config.save_checkpoints_secs or 0,
                    self._request.listeners,
                    self._target.mode,
                    self._running_session,
                    self._meter,
                )
            )
        elif self._request.listeners:
            raise ValueError(
                "There should be a CheckpointSaverHook to use saving_listeners. Please set one of the "
                "RunConfig.save_checkpoints_steps or RunConfig.save_checkpoints_secs."
            )
        if config.save_summary_steps:
            hooks.append(
                train_v1.SummarySaverHook(
                    save_steps=config.save_summary_steps,
                    output_dir=self._request.model_dir,
                    summary_op=ops.summary,
                )
            )
        if config.log_step_count_steps:
            hooks.append(
                _QuietStepCounterHook(every_n_steps=config.log_step_count_steps, output_dir=self._request.model_dir)
            )
        # The caller's come last, as in tf.estimator: they find the checkpoint, and what was evaluated, of their step.
        hooks += [*getattr(model.spec, "training_chief_hooks", ()), *self._request.hooks]
        return [*hooks, *getattr(model.spec, "training_hooks", ())]

    def _create_session(
        self, model: Model, ops: TrainingOps, saver: CheckpointSaver, initial: str | None
    ) -> ProgramSession:
        spec, request = model.spec, self._request
        assert self._compiled is not None
        scaffold = getattr(spec, "scaffold", None)
        if scaffold is not None and self._target.mode != WEIGHT_STREAMING:
            scaffold.finalize()  # hooks may use its saver
            has_files = getattr(request.config, "checkpoint_save_graph_def", True)
            saver.write_graph = GraphFiles(model.graph, request.model_dir, scaffold.saver, has_files).write_beside
        begin = time.perf_counter()
        self._pipeline.start()
        session = ProgramSession(
            self._compiled.program, model.graph, model.train_node, self._store, self._session_config, self._next_batch
        )
        self._session = session
        session.run(ops.local_init)
        if self._start is not None:
            run_log.info("Restoring parameters from %s", self._start)
            checkpoints.restore(session, self._start, model.saved_names())
            is_ours = os.path.abspath(self._start) == os.path.abspath(saver.path(session.global_step))
            saver.saved_step = session.global_step if is_ours else None
        elif initial is not None:
            checkpoints.restore(session, initial, model.saved_names())
        else:
            initialize(session, model, request.warm_start)
        self._programming_s = time.perf_counter() - begin
        if self._target.mode == WEIGHT_STREAMING:
            run_log.info("Loading CPU pre-initialized weights took %.3f seconds", self._programming_s)
        if self._start is None and scaffold is not None and scaffold.init_fn is not None:
            scaffold.init_fn(session)
        return session

    def _running_session(self) -> ProgramSession:
        assert self._session is not None
        return self._session

    def _next_batch(self) -> Any:
        batch = self._pipeline.next_batch()
        self._meter.batch_size = first_dim(batch)
        return batch

    def _finish(self, watch: TrainingHook) -> None:
        if self._pipeline.is_exhausted:
            run_log.warning(
                "The input ended at step %d%s; training stops here. Repeat the dataset to go on.",
                self._running_session().global_step,
                f", before step {self._last_step}" if self._last_step else "",
            )
        overall = self._meter.overall_speed()
        run_log.info(
            "Training finished with %d samples in %.3f seconds, %.2f samples/second.",
            self._meter.samples, self._meter.elapsed_s, overall.samples_per_s,
        )  # fmt: skip
        if watch.final_loss is not None:
            run_log.info("Loss for final step: %.6g.", watch.final_loss)
        assert self._compiled is not None
        performance.write(
            self._request.model_dir,
            performance.Performance(
                compile_time=self._compiled.compile_s,
                programming_time=self._programming_s,
                samples_per_sec=overall.samples_per_s,
                total_samples=self._meter.samples,
                total_time=self._meter.elapsed_s,
                est_samples_per_sec=self._compiled.estimate.samples_per_s,
                suspected_input_bottleneck=performance.is_input_bound(self._meter.input_wait_share),
            ),
        )


class _QuietStepCounterHook(tf.compat.v1.train.StepCounterHook):
    """Writes global_step/sec to the event file; our own line carries the speed in the log."""

    def _log_and_record(self, elapsed_steps: int, elapsed_time: float, global_step: int) -> None:
        before = run_log.level
        run_log.setLevel(logging.WARNING)
        try:
            super()._log_and_record(elapsed_steps, elapsed_time, global_step)
        finally:
            run_log.setLevel(before)
