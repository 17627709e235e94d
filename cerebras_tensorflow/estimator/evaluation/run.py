"""One evaluation of a checkpoint, with the metrics of the spec or of its host_call."""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from cerebras_tensorflow import files
from cerebras_tensorflow.config.env import WEIGHT_STREAMING
from cerebras_tensorflow.config.work_folder import work_folder
from cerebras_tensorflow.estimator.config.run_settings import RunSettings
from cerebras_tensorflow.estimator.evaluation.several_csx import other_csx
from cerebras_tensorflow.estimator.evaluation.summary import write_evaluation
from cerebras_tensorflow.estimator.execution import micro_batch_size, store_choice
from cerebras_tensorflow.estimator.execution.compile_model import compile_model
from cerebras_tensorflow.estimator.execution.session_settings import SessionCreator, session_config_of
from cerebras_tensorflow.estimator.execution.several_csx import CsxRequest, num_csx_of
from cerebras_tensorflow.estimator.execution.target import Target
from cerebras_tensorflow.estimator.host_call import HostMetrics
from cerebras_tensorflow.estimator.mode_keys import ModeKeys
from cerebras_tensorflow.estimator.model.graph_settings import graph_semantics
from cerebras_tensorflow.estimator.model.inputs import InputPipeline
from cerebras_tensorflow.estimator.model.model_call import Model, call_model_fn, local_init_of
from cerebras_tensorflow.estimator.model.scaffold import acting_saver, checkpoint_layout, finalize, own_init
from cerebras_tensorflow.estimator.training import checkpoints
from cerebras_tensorflow.estimator.training.initialize import initial_values, set_initial_values
from cerebras_tensorflow.estimator.uploads import upload_files
from cerebras_tensorflow.logs import run_log, run_progress
from cerebras_tensorflow.runtime.session import ProgramSession

train_v1 = tf.compat.v1.train


@dataclass(frozen=True)
class InferenceRequest:
    """Arguments of evaluate or predict.

    Attributes:
        model_fn, params, settings, model_dir, compile_dir, warm_start: From the estimator.
        input_fn, hooks: From the caller.
        steps: Number of batches; None: all.
        checkpoint_path: Checkpoint to use; None: the newest of model_dir.
        name: Name of this evaluation. Its event files go to `<model_dir>/eval_<name>`.
        ignores_negative_labels: Whether labels of -1 give no loss.
        load: load(model, session) sets the variables instead of a checkpoint. None: use the checkpoint.
    """

    model_fn: Callable[..., Any]
    input_fn: Callable[..., Any]
    params: Any
    settings: RunSettings
    model_dir: str
    compile_dir: str
    warm_start: Any
    hooks: Sequence[Any]
    steps: int | None
    checkpoint_path: str | None
    name: str | None = None
    ignores_negative_labels: bool = False
    load: Callable[[Model, ProgramSession], None] | None = None


@files.closed_to_others()
def evaluate(request: InferenceRequest, target: Target) -> dict[str, Any]:
    """Return metric name -> value, with "loss" (mean over batches) and "global_step"."""
    begin = time.perf_counter()
    path = checkpoint_of(request)
    with opened_model(dataclasses.replace(request, checkpoint_path=path), target, ModeKeys.EVAL) as opened:
        model, create, pipeline = opened
        spec = model.spec
        run_log.info("Done calling model_fn.")
        ops = evaluation_ops(model)
        host = ops.host
        fetches = [list(ops.updates.values()), host.fetches if host else []]
        results: dict[str, Any] = {}

        def finish(session: ProgramSession) -> None:
            results.update(session.run(ops.values))
            results["global_step"] = np.int64(session.global_step)
            if host is not None:
                results.update(host.results())

        hooks = [
            *request.hooks,
            *getattr(spec, "evaluation_hooks", ()),
            EvaluationHook(request.steps, finish, request.ignores_negative_labels, lambda: pipeline.is_between_batches),
        ]
        creator = SessionCreator(lambda: create(ops.roots))
        with (
            model.graph.as_default(),
            train_v1.MonitoredSession(session_creator=creator, hooks=hooks) as session,
            run_progress("Evaluating", request.steps, "batches") as progress,
        ):
            while not session.should_stop():
                _, device_values = session.run(fetches)
                progress.advance()
                if host is not None:
                    host.update(device_values)
        if host is not None:
            host.close()
    if not results:
        raise ValueError("evaluate: the input has no batch. Check the files and the batch size of eval_input.")
    folder = os.path.join(work_folder(request.model_dir), f"eval_{request.name}" if request.name else "eval")
    write_evaluation(folder, results, path)
    upload_files(request.model_dir)
    log_results(results, begin, is_short=request.ignores_negative_labels)
    return results


def log_results(results: Mapping[str, Any], begin: float, is_short: bool = False) -> None:
    """Log the results of an evaluation, and how long it took since a time.perf_counter.

    Args:
        results: Metric name -> value.
        begin: The time.perf_counter.
        is_short: Whether to show six digits, as the original does for a CerebrasEstimator.
    """
    shown = ", ".join(f"{key} = {_shown(value, is_short)}" for key, value in sorted(results.items()))
    run_log.info("Finished evaluation in %.2f seconds.", time.perf_counter() - begin)
    run_log.info("Saving dict for global step %d: %s", results["global_step"], shown)


@dataclass(frozen=True)
class EvaluationOps:
    """Ops and tensors of an evaluation.

    Attributes:
        updates: Metric name -> op that adds one batch to the metric.
        values: Metric name -> tensor of its value, or a structure of tensors; in the order of the names, as in 2.15.
        host: Metrics that run on the host; None if the spec has no host_call.
    """

    updates: dict[str, Any]
    values: dict[str, Any]
    host: HostMetrics | None

    @property
    def roots(self) -> list[Any]:
        """All tensors and ops that the device computes."""
        values = tf.nest.flatten(list(self.values.values()))
        return [*self.updates.values(), *values, *(self.host.fetches if self.host else [])]


def evaluation_ops(model: Model) -> EvaluationOps:
    """Add the metrics of the spec and the mean loss to a model's graph.

    Raises:
        ValueError: If a metric has the name of a result that every evaluation has.
    """
    host_call = getattr(model.spec, "host_call", None)
    updates: dict[str, Any] = {}
    values: dict[str, Any] = {}
    metrics = model.spec.eval_metric_ops or {}
    check_metric_names(metrics)
    with model.graph.as_default(), graph_semantics():
        for key, metric in metrics.items():
            values[key], updates[key] = metric
        values["loss"], updates["loss"] = tf.compat.v1.metrics.mean(model.spec.loss)
    values = dict(sorted(values.items()))
    return EvaluationOps(updates, values, HostMetrics(host_call) if host_call is not None else None)


def check_metric_names(metrics: Iterable[str]) -> None:
    """Raise an error if a metric's name is reserved for a result of every evaluation."""
    for key in metrics:
        if key in ("loss", "global_step"):
            shown = '"loss"' if key == "loss" else "`global_step`"  # as in tf.estimator
            raise ValueError(
                f"Metric with name {shown} is not allowed, because Estimator already defines a default metric with the "
                "same name. Rename it in eval_metric_ops."
            )


@contextmanager
def opened_model(
    request: InferenceRequest, target: Target, mode: str
) -> Iterator[tuple[Model, Callable[[list[Any]], ProgramSession], InputPipeline]]:
    """Yield a model for inference, a function from the tensors and ops to run to its session, and the input."""
    path = checkpoint_of(request)
    if request.checkpoint_path:
        checkpoints.check_exists(request.checkpoint_path)
    if path is None and request.load is None:
        purpose = "evaluate" if mode == ModeKeys.EVAL else "predict"
        run_log.info(
            "Could not find trained model in model_dir: %s, running initialization to %s.", request.model_dir, purpose
        )
    session_config = session_config_of(request.settings, target.mode)  # XLA must be chosen before the first session
    pipeline = InputPipeline(request.input_fn, request.params, mode, request.settings)
    micro_batch_size.cut(pipeline, request.settings.cs, request.params, mode)
    sessions: list[ProgramSession] = []
    cleanup = ExitStack()

    def create(roots: list[Any]) -> ProgramSession:
        local_init = local_init_of(model)
        step = model.step([*roots, local_init])
        compiled = compile_model(
            model, step, target.mode, request.settings.cs, request.compile_dir, is_for_cs=target.system is not None
        )
        program, folder = compiled.program, work_folder(request.model_dir)
        cs, next_batch = request.settings.cs, pipeline.next_micro_batch if pipeline.is_fed else None
        is_alone = request.load is not None or next_batch is None  # else the systems compute batches
        store = store_choice.open_store(program, cs, folder, copies=1 if is_alone else num_csx_of(cs))
        with ExitStack() as unused:
            if store is not None:
                unused.callback(store.close)
            others = None
            if request.load is None:
                needs = CsxRequest(program, None, local_init.name, session_config, cs, folder, store=store)
                others = other_csx(needs, mode, pipeline, request.steps, cleanup)
            session = ProgramSession(program, model.graph, None, store, session_config, next_batch, inference=others)
            sessions.append(session)
            unused.pop_all()
        pipeline.start()
        session.run(local_init)
        _set_variables(request, path, model, session)
        pipeline.initialize(session)
        return session

    try:
        if target.mode == WEIGHT_STREAMING:
            run_log.info("Running the TF Client")
        model = call_model_fn(
            request.model_fn, pipeline, mode, request.params, request.settings, request.ignores_negative_labels
        )
        yield model, create, pipeline
    finally:
        pipeline.close()
        for session in sessions:
            session.close()
        cleanup.close()


def _set_variables(request: InferenceRequest, path: str | None, model: Model, session: ProgramSession) -> None:
    """Set the variables from a checkpoint, by `load`, or to their initial values."""
    init = own_init(model)  # before finalize
    if request.load is not None:
        request.load(model, session)  # before finalize: load checks the Scaffold that model_fn returned
    keys = checkpoint_layout(model, finalize(model)).keys
    if path is not None:
        acting = acting_saver(model, path)
        if acting is not None:
            checkpoints.restore_with(acting, session, path)
        else:
            run_log.info("Restoring parameters from %s", path)
            checkpoints.restore(session, path, keys)
        set_initial_values(session, model, set(model.saved_names()) - set(keys))
    elif request.load is None:
        for name, value in initial_values(model, request.warm_start):
            session.load(name, value)
        init.run(model, session)


def checkpoint_of(request: InferenceRequest) -> str | None:
    """Return the checkpoint of a request; None if there is none yet, or `load` sets the variables."""
    if request.checkpoint_path is None and request.load is None:
        return checkpoints.newest_whole(request.model_dir)
    return request.checkpoint_path


def _shown(value: Any, is_short: bool) -> str:
    if isinstance(value, (tuple, list, Mapping)):
        return str(tf.nest.map_structure(lambda part: part.tolist() if hasattr(part, "tolist") else part, value))
    return f"{value:.6g}" if is_short and np.ndim(value) == 0 and not isinstance(value, bytes) else str(value)


class EvaluationHook(tf.compat.v1.train.SessionRunHook):
    """Stops after the given number of batches and reads the metrics at the end.

    Args:
        steps: Number of batches; None: until the input ends.
        finish: Reads the metrics in the session.
        needs_batch: Whether to skip `finish` if the input has no batch. tf.estimator does not skip it, and returns the
            metrics' initial values.
        ends_batch: Returns whether the last run ended a batch. A batch has one run for each micro-batch.
    """

    def __init__(
        self,
        steps: int | None,
        finish: Callable[[Any], None],
        needs_batch: bool,
        ends_batch: Callable[[], bool] = lambda: True,
    ) -> None:
        self._steps = steps
        self._ends_batch = ends_batch
        self._finish = finish
        self._needs_batch = needs_batch
        self._taken = 0

    def after_run(self, run_context: Any, run_values: Any) -> None:
        """Stop after the last batch."""
        self._taken += self._ends_batch()
        if self._steps is not None and self._taken >= self._steps:
            run_context.request_stop()

    def end(self, session: Any) -> None:
        """Read the metrics."""
        if not self._taken and not self._needs_batch:
            run_log.warning("The evaluation's input has no batch, so the metrics have their initial values.")
        if self._taken or not self._needs_batch:
            self._finish(session)
