"""Prepare a training run for its hooks: the model, the compiled step, the store and the input."""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

from cerebras_tensorflow import tf_private
from cerebras_tensorflow.config.env import WEIGHT_STREAMING
from cerebras_tensorflow.estimator.execution import micro_batch_size, replicas, restrictions, several_csx, store_choice
from cerebras_tensorflow.estimator.execution.compile_model import Compiled, compile_model
from cerebras_tensorflow.estimator.execution.session_settings import let_tensorflow_rewrite, session_config_of
from cerebras_tensorflow.estimator.execution.target import Target
from cerebras_tensorflow.estimator.mode_keys import ModeKeys
from cerebras_tensorflow.estimator.model.inputs import InputPipeline
from cerebras_tensorflow.estimator.model.model_call import Model, call_model_fn
from cerebras_tensorflow.estimator.training.checkpoint_saver import CheckpointSaver, NamedValue
from cerebras_tensorflow.estimator.training.initialize import initial_rows
from cerebras_tensorflow.estimator.training.ops import TrainingOps, training_ops
from cerebras_tensorflow.estimator.training.request import TrainingRequest
from cerebras_tensorflow.estimator.training.signals import StopSignals
from cerebras_tensorflow.logs import run_log, run_progress
from cerebras_tensorflow.perf.meter import Meter
from cerebras_tensorflow.progress import Progress
from cerebras_tensorflow.runtime.host.heap import trim_heap
from cerebras_tensorflow.runtime.weight_store.interface import WeightStore

_LARGE_GRAPH = 5_000  # nodes


@dataclass(frozen=True)
class PreparedRun:
    """A training run that is ready for its hooks and its session.

    Attributes:
        request, target: The arguments of train, and where the run executes.
        start: Checkpoint to resume from; None for a new run.
        last_step: Global step at which the run ends; None: at the end of the input.
        initial: Checkpoint of the initial values; None if the session makes them.
        model, ops: The model, and its ops for training.
        compiled: The compiled step.
        store: The opened weight store; None if nothing is streamed.
        saver: Writes the checkpoints.
        pipeline: The input.
        meter: Measures the run.
        session_config: ConfigProto of the session.
        cleanup: Closes everything that the run has opened.
        unused_store: Closes the store until a session owns it.
    """

    request: TrainingRequest
    target: Target
    start: str | None
    last_step: int | None
    initial: str | None
    model: Model
    ops: TrainingOps
    compiled: Compiled
    store: WeightStore | None
    saver: CheckpointSaver
    pipeline: InputPipeline
    meter: Meter
    session_config: Any
    cleanup: ExitStack
    unused_store: ExitStack

    @property
    def is_streaming(self) -> bool:
        """Whether the run is in weight streaming."""
        return self.target.mode == WEIGHT_STREAMING


def prepare(
    request: TrainingRequest,
    target: Target,
    start: str | None,
    last_step: int | None,
    signals: StopSignals,
    cleanup: ExitStack,
) -> PreparedRun:
    """Call model_fn, compile the step and open its store. All checks come before the first write.

    Args:
        request: The arguments of train.
        target: Where the run executes.
        start: Checkpoint to resume from; None for a new run.
        last_step: Global step at which the run ends; None: at the end of the input.
        signals: A received signal ends the input.
        cleanup: Gets callbacks that close everything opened here.
    """
    session_config = session_config_of(request.settings, target.mode)  # XLA must be chosen before the first session
    if not request.is_cerebras:
        let_tensorflow_rewrite(session_config)
    pipeline = InputPipeline(
        request.input_fn, request.params, ModeKeys.TRAIN, request.settings, lambda: signals.received is not None
    )
    cleanup.callback(pipeline.close)
    model, ops, compiled = _compile(request, target, pipeline, last_step)
    saver = CheckpointSaver(request.model_dir, target.mode, model.checkpoint_keys(), request.settings)
    store = store_choice.open_store(compiled.program, request.settings.cs, request.work_folder, is_training=True)
    unused_store = cleanup.enter_context(ExitStack())
    if store is not None:
        unused_store.callback(store.close)
    initial: str | None = None
    if start is None and target.mode == WEIGHT_STREAMING:
        initial = _write_initial_values(saver, model, request, compiled.program.weight_bytes)
        if pipeline.graph is None:
            # The original calls model_fn again for the graph of the run, and its log shows it. Here it costs the time
            # of building the model once more.
            graph_def = ops.step.graph_def
            compiled.estimate.let_go_of_graph()
            del model, ops
            _free_graph_of(graph_def)
            model = _call_model(request, pipeline, last_step)
            ops = training_ops(model, request.is_cerebras)
    return PreparedRun(
        request=request,
        target=target,
        start=start,
        last_step=last_step,
        initial=initial,
        model=model,
        ops=ops,
        compiled=compiled,
        store=store,
        saver=saver,
        pipeline=pipeline,
        meter=Meter(lambda: pipeline.waited_s),
        session_config=session_config,
        cleanup=cleanup,
        unused_store=unused_store,
    )


def _compile(
    request: TrainingRequest, target: Target, pipeline: InputPipeline, last_step: int | None
) -> tuple[Model, TrainingOps, Compiled]:
    """Return the model, its ops for training and its step, compiled with a micro-batch size that fits."""
    if target.mode == WEIGHT_STREAMING:
        run_log.info("Running the TF Client")
    cs = request.settings.cs

    def attempt() -> tuple[Model, TrainingOps, Compiled]:
        with run_progress("Building the model"):
            model = _call_model(request, pipeline, last_step)
        run_log.info("Done calling model_fn.")
        for weight in model.sparse:
            if weight.algorithm is not None and last_step is not None:
                weight.algorithm.check_end(weight.name, last_step)
        restrictions.check_training(model, request.hooks, target.is_cs, target.mode)
        ops = training_ops(model, request.is_cerebras)
        return (
            model,
            ops,
            compile_model(
                model,
                ops.step,
                target.mode,
                cs,
                request.compile_dir,
                is_for_cs=target.system is not None,
                estimates_later=not request.is_cerebras,
            ),
        )

    several_csx.share_batches(pipeline, cs, request.params)
    cs = replicas.share_batches(pipeline, request.settings, request.params, target)
    return micro_batch_size.first_that_fits(pipeline, cs, request.params, attempt)


def _free_graph_of(graph_def: Any) -> None:
    """Free a graph of TensorFlow that nothing refers to any more, if it is large: some megabytes for each layer."""
    tf_private.forget_custom_gradients(graph_def)
    if len(graph_def.node) >= _LARGE_GRAPH:
        gc.collect()
        trim_heap()


def _call_model(request: TrainingRequest, pipeline: InputPipeline, last_step: int | None) -> Model:
    model = call_model_fn(
        request.model_fn,
        pipeline,
        ModeKeys.TRAIN,
        request.params,
        request.settings,
        request.is_cerebras,
        request.sparsity,
    )
    if model.spec.train_op is None and model.spec.loss is not None:  # without a loss, its use is a ValueError
        raise TypeError(f"model_fn returned an EstimatorSpec of mode {model.spec.mode} without train_op for training.")
    return replace(model, last_step=last_step)


def _write_initial_values(saver: CheckpointSaver, model: Model, request: TrainingRequest, num_bytes: int) -> str:
    """Write the initial values as the checkpoint of step 0; return its path."""
    begin = time.perf_counter()
    with run_progress("Initializing weights", num_bytes) as progress:
        path = saver.prewrite(_counted(initial_rows(model, request.warm_start), progress))
    run_log.info("Completed weight initialization on CPU in: %.3f seconds", time.perf_counter() - begin)
    return path


def _counted(values: Iterable[NamedValue], progress: Progress) -> Iterator[NamedValue]:
    """Yield the values of variables, and count their bytes."""
    for name, dtype, shape, value in values:
        yield name, dtype, shape, value
        progress.advance(math.prod(shape) * dtype.itemsize)
