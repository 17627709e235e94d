"""A training run in TensorFlow's own sessions: a task of a TF_CONFIG cluster, or the replicas of a strategy.

The run is not compiled for a simulated system. TensorFlow writes the checkpoints and summaries, and only in the chief.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from cerebras_tensorflow import files, tf_private
from cerebras_tensorflow.estimator.config.run_settings import Distribution, RunSettings
from cerebras_tensorflow.estimator.distributed.format import check_folder, tensorflow_prefix
from cerebras_tensorflow.estimator.distributed.graph_model import (
    GraphModel,
    build,
    device_function,
    model_graph,
    session_config_of,
)
from cerebras_tensorflow.estimator.distributed.strategies import check_strategy
from cerebras_tensorflow.estimator.distributed.unused import warn_of_unused
from cerebras_tensorflow.estimator.mode_keys import ModeKeys
from cerebras_tensorflow.estimator.training import checkpoints
from cerebras_tensorflow.estimator.training.ops import add_loss_summary
from cerebras_tensorflow.estimator.training.request import TrainingRequest
from cerebras_tensorflow.estimator.training.warm_start import WarmStartSettings, checkpoint_of
from cerebras_tensorflow.logs import run_log
from cerebras_tensorflow.saver.files.atomic import FolderLock

train_v1 = tf.compat.v1.train


def is_distributed(settings: RunSettings) -> bool:
    """Whether a training run with these settings runs in TensorFlow's own sessions."""
    return bool(settings.distribution.master) or settings.distribution.train_distribute is not None


@files.closed_to_others()
def train(request: TrainingRequest) -> None:
    """Train until the last step or the end of the input. In a cluster the last step counts the steps of all workers.

    Raises:
        ValueError: If the strategy cannot run in an Estimator, or there are listeners but no checkpoints.
        SettingsError: If the newest checkpoint, or that of a warm start, is not in TensorFlow's format.
        NanLossDuringTrainingError: If the loss is NaN.
    """
    distribution = request.settings.distribution
    strategy = distribution.train_distribute
    check_strategy("train_distribute", strategy, distribution)
    check_folder(request.model_dir)
    newest = tf.train.latest_checkpoint(request.model_dir)
    if newest is not None:
        tensorflow_prefix(newest)
    warm_start = _warm_start_of(request, newest)
    if request.last_step is not None and checkpoints.step_saved_by_others(request.model_dir) >= request.last_step:
        run_log.info("Skipping training since max_steps has already saved.")
        return
    run_log.info(
        "TensorFlow runs this training in its own session%s. It is not compiled for a simulated system.",
        f" at {distribution.master}" if distribution.master else "",
    )
    warn_of_unused(request.settings, request.params, ModeKeys.TRAIN, sparsity=request.sparsity)
    if request.is_cerebras:
        run_log.info("The loss of this run does not ignore labels of -1.")
    with FolderLock(request.model_dir) if distribution.is_chief else nullcontext():
        _run(request, strategy, warm_start)


def _warm_start_of(request: TrainingRequest, newest: str | None) -> WarmStartSettings | None:
    """Return the warm start of a run without a checkpoint, with the path that TensorFlow needs; else None."""
    start = request.warm_start
    if start is None:
        return None
    if newest is not None:
        run_log.info("warm_start_from is not used: the run resumes from %s.", newest)
        return None
    return start._replace(ckpt_to_initialize_from=tensorflow_prefix(checkpoint_of(start)))


def _run(request: TrainingRequest, strategy: Any, start: WarmStartSettings | None) -> None:
    settings = request.settings
    session_config = session_config_of(settings, strategy)
    device_fn = device_function(settings.distribution) if strategy is None else None
    with model_graph(settings, strategy, device_fn):
        model = build(request, ModeKeys.TRAIN, strategy)
        run_log.info("Done calling model_fn.")
        if start is not None:
            train_v1.warm_start(
                start.ckpt_to_initialize_from,
                start.vars_to_warm_start,
                start.var_name_to_vocab_info,
                start.var_name_to_prev_var_name,
            )
        loss = model.loss()
        add_loss_summary(tf.compat.v1.get_default_graph(), loss)
        tf.compat.v1.losses.add_loss(loss)
        _add_saver(model.scaffold, settings)
        train_op = model.group(model.spec.train_op)
        final_loss = None
        with _session(request, _hooks_of(request, model, loss), model, session_config) as session:
            if request.on_ready is not None and settings.distribution.is_chief:
                request.on_ready()
            while not session.should_stop():
                _, final_loss = session.run([train_op, loss])
    if final_loss is None:
        run_log.warning("Training with estimator made no steps. Perhaps input is empty or misspecified.")
    else:
        run_log.info("Loss for final step: %s.", final_loss)


@dataclass(frozen=True)
class _Hooks:
    """The hooks of a run.

    Attributes:
        everywhere: Hooks of every task.
        chief: Hooks of the chief only.
        save_summary_steps, log_step_count_steps: Intervals of hooks that MonitoredTrainingSession adds in the chief.
    """

    everywhere: list[Any]
    chief: list[Any]
    save_summary_steps: int
    log_step_count_steps: int | None


def _hooks_of(request: TrainingRequest, model: GraphModel, loss: Any) -> _Hooks:
    settings = request.settings
    hooks = [*model.input_hooks, *request.hooks]
    if request.steps is not None or request.last_step is not None:
        hooks.append(train_v1.StopAtStepHook(request.steps, request.last_step))
    hooks.append(train_v1.NanTensorHook(loss))
    if settings.log_step_count_steps is not None:
        logged = {"loss": loss, "step": train_v1.get_global_step()}
        hooks.append(train_v1.LoggingTensorHook(logged, every_n_iter=settings.log_step_count_steps))
    hooks += model.hooks("training_hooks")
    chief = [*_saver_hooks(request, model, hooks), *model.hooks("training_chief_hooks")]
    if not _workers_relieve_the_master(settings.distribution):
        return _Hooks(hooks, chief, settings.save_summary_steps or 0, settings.log_step_count_steps)
    if (settings.distribution.task_type, settings.distribution.task_id) == ("worker", 0):
        hooks += _summary_hooks(request, model.scaffold)
    return _Hooks(hooks, chief, 0, None)


def _saver_hooks(request: TrainingRequest, model: GraphModel, hooks: list[Any]) -> list[Any]:
    """Return the hook that saves. If the caller has one, return none and give the listeners to the caller's hook."""
    settings = request.settings
    listeners = list(request.listeners)
    own = [
        hook
        for hook in (*hooks, *model.hooks("training_chief_hooks"))
        if isinstance(hook, train_v1.CheckpointSaverHook)
    ]
    if own:
        tf_private.add_listeners(own[0], listeners)
        return []
    if settings.save_checkpoints_secs or settings.save_checkpoints_steps:
        return [
            train_v1.CheckpointSaverHook(
                request.model_dir,
                save_secs=settings.save_checkpoints_secs,
                save_steps=settings.save_checkpoints_steps,
                scaffold=model.scaffold,
                listeners=listeners,
                save_graph_def=settings.checkpoint_save_graph_def,
            )
        ]
    if listeners:
        raise ValueError(
            "There should be a CheckpointSaverHook to use saving_listeners. Please set one of the "
            "RunConfig.save_checkpoints_steps or RunConfig.save_checkpoints_secs."
        )
    return []


def _workers_relieve_the_master(distribution: Distribution) -> bool:
    """Whether worker 0 writes the summaries. A master's evaluations would delay them."""
    jobs = distribution.cluster_spec.jobs if distribution.cluster_spec else ()
    return "master" in jobs and "worker" in jobs


def _summary_hooks(request: TrainingRequest, scaffold: Any) -> list[Any]:
    settings, hooks = request.settings, []
    if settings.save_summary_steps:
        hooks.append(
            train_v1.SummarySaverHook(
                save_steps=settings.save_summary_steps, output_dir=request.model_dir, scaffold=scaffold
            )
        )
    if settings.log_step_count_steps:
        hooks.append(
            train_v1.StepCounterHook(every_n_steps=settings.log_step_count_steps, output_dir=request.model_dir)
        )
    return hooks


def _session(request: TrainingRequest, hooks: _Hooks, model: GraphModel, config: Any) -> Any:
    settings = request.settings
    return train_v1.MonitoredTrainingSession(
        master=settings.distribution.master,
        is_chief=settings.distribution.is_chief,
        checkpoint_dir=request.model_dir,
        scaffold=model.scaffold,
        hooks=hooks.everywhere,
        chief_only_hooks=hooks.chief,
        save_checkpoint_secs=0,  # a hook saves
        save_summaries_steps=hooks.save_summary_steps,
        config=config,
        max_wait_secs=settings.distribution.session_creation_timeout_secs,
        log_step_count_steps=hooks.log_step_count_steps,
        save_graph_def=settings.checkpoint_save_graph_def,
    )


def _add_saver(scaffold: Any, settings: RunSettings) -> None:
    key = tf.compat.v1.GraphKeys.SAVERS
    if scaffold.saver is None and not tf.compat.v1.get_collection(key):
        saver = train_v1.Saver(
            sharded=True,
            max_to_keep=settings.keep_checkpoint_max,
            keep_checkpoint_every_n_hours=settings.keep_checkpoint_every_n_hours,
            defer_build=True,
            save_relative_paths=True,
        )
        tf.compat.v1.add_to_collection(key, saver)
