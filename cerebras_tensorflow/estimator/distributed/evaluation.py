"""An evaluation in TensorFlow's own session: with eval_distribute, or at an evaluation_master."""

from __future__ import annotations

import os
import time
from typing import Any

import tensorflow as tf

from cerebras_tensorflow.estimator.config.run_settings import RunSettings
from cerebras_tensorflow.estimator.distributed.format import check_folder, tensorflow_prefix
from cerebras_tensorflow.estimator.distributed.graph_model import GraphModel, build, model_graph, session_config_of
from cerebras_tensorflow.estimator.distributed.strategies import check_strategy
from cerebras_tensorflow.estimator.distributed.unused import warn_of_unused
from cerebras_tensorflow.estimator.evaluation.run import (
    EvaluationHook,
    InferenceRequest,
    check_metric_names,
    checkpoint_of,
    log_results,
)
from cerebras_tensorflow.estimator.evaluation.summary import write_evaluation
from cerebras_tensorflow.estimator.mode_keys import ModeKeys
from cerebras_tensorflow.logs import run_log

train_v1 = tf.compat.v1.train


def is_distributed(settings: RunSettings) -> bool:
    """Whether an evaluation with these settings runs in TensorFlow's own session."""
    return bool(settings.distribution.evaluation_master) or settings.distribution.eval_distribute is not None


def evaluate(request: InferenceRequest) -> dict[str, Any]:
    """Return metric name -> value, with "loss" and "global_step", as evaluation.run.evaluate does.

    Raises:
        ValueError: If the strategy cannot run in an Estimator, or the input has no batch.
        SettingsError: If the checkpoint is not in TensorFlow's format.
    """
    begin = time.perf_counter()
    settings = request.settings
    strategy = settings.distribution.eval_distribute
    check_folder(request.model_dir)
    check_strategy("eval_distribute", strategy, settings.distribution)
    session_config = session_config_of(settings, strategy)
    path = checkpoint_of(request)
    if path is None:
        run_log.info(
            "Could not find trained model in model_dir: %s, running initialization to evaluate.", request.model_dir
        )
    else:
        path = tensorflow_prefix(path)
    warn_of_unused(settings, request.params, ModeKeys.EVAL)
    results: dict[str, Any] = {}
    with model_graph(settings, strategy):
        model = build(request, ModeKeys.EVAL, strategy)
        run_log.info("Done calling model_fn.")
        update, values = _metrics(model)
        values["global_step"] = train_v1.get_global_step()
        finish = EvaluationHook(
            request.steps, lambda session: results.update(session.run(values)), request.ignores_negative_labels
        )
        creator = train_v1.ChiefSessionCreator(
            model.scaffold, settings.distribution.evaluation_master, session_config, checkpoint_filename_with_path=path
        )
        hooks = [*model.input_hooks, *request.hooks, *model.hooks("evaluation_hooks"), finish]
        with train_v1.MonitoredSession(session_creator=creator, hooks=hooks) as session:
            while not session.should_stop():
                session.run(update)
    if not results:
        raise ValueError("evaluate: the input has no batch. Check the files and the batch size of eval_input.")
    write_evaluation(os.path.join(request.model_dir, f"eval_{request.name}" if request.name else "eval"), results, path)
    log_results(results, begin)
    return results


def _metrics(model: GraphModel) -> tuple[Any, dict[str, Any]]:
    """Return the op that adds one batch to all metrics, and metric name -> tensor of its value.

    Raises:
        ValueError: If a metric has a name that is taken, or cannot be used here.
    """
    given = model.spec.eval_metric_ops or {}
    check_metric_names(given)
    if getattr(model.spec, "host_call", None) is not None:
        raise ValueError("host_call cannot be used with eval_distribute or an evaluation_master: use eval_metric_ops.")
    for name, metric in given.items():
        if not isinstance(metric, tuple):  # EstimatorSpec makes no pair of it under a strategy
            raise ValueError(f"Metric {name} is a Keras metric. With eval_distribute use one of tf.compat.v1.metrics.")
    metrics = dict(given)
    metrics["loss"] = model.on_each_replica(tf.compat.v1.metrics.mean, model.spec.loss)
    updates = [model.group(update) for _, update in metrics.values()]
    return tf.group(updates), {name: model.first(value) for name, (value, _) in sorted(metrics.items())}
