"""Error texts and results of tf.estimator 2.15. We ran the same lines on 2.15 and on ours to find the differences."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.compat import models

v1 = tf.compat.v1
E = tf.estimator
CLUSTER = {"chief": ["a:1"], "worker": ["b:2"]}
A = np.arange(5.0)


def test_more_metrics_join_those_of_the_spec(trained: Any) -> None:
    def metric_fn(labels: Any, predictions: Any) -> Any:
        return {"mean": v1.metrics.mean(predictions["p"]), "mae": v1.metrics.mean(labels * 0.0)}

    extended = E.add_metrics(trained, metric_fn)
    results = extended.evaluate(models.once)
    assert sorted(results) == ["global_step", "loss", "mae", "mean"]
    assert results["mae"] == 0
    assert results["loss"] == trained.evaluate(models.once, name="again")["loss"]


def test_metric_fn_arguments_are_checked(trained: Any) -> None:
    with pytest.raises(ValueError, match=r"has following not expected args: \['other'\]"):
        E.add_metrics(trained, lambda other: {})


def test_a_logit_fn_gets_only_the_arguments_it_names() -> None:
    with tf.Graph().as_default():
        x = tf.constant([1.0])
        logits = E.experimental.call_logit_fn(lambda features, mode: features * 2, x, "train", {}, None)
        assert isinstance(logits, tf.Tensor)


def test_stopping_at_a_checkpoint_step(fresh: Any) -> None:
    hook = E.experimental.make_stop_at_checkpoint_step_hook(fresh, 3)
    fresh.train(models.repeated, hooks=[hook], steps=9)
    assert fresh.get_variable_value("global_step") == 3


def test_results_are_numpy_values(trained: Any) -> None:
    results = trained.evaluate(models.once, name="types")
    assert {name: type(value) for name, value in results.items()} == {
        "loss": np.float32,
        "mae": np.float32,
        "global_step": np.int64,
    }


def test_evaluating_an_empty_input_gives_zero_metrics(trained: Any) -> None:
    results = trained.evaluate(lambda: models.once().take(0), name="nothing")
    assert results == {"loss": 0.0, "mae": 0.0, "global_step": 20}


def test_a_missing_variable_is_not_found(trained: Any) -> None:
    with pytest.raises(tf.errors.NotFoundError, match="Key nothing not found in checkpoint"):
        trained.get_variable_value("nothing")


def test_a_missing_checkpoint_is_refused(trained: Any) -> None:
    with pytest.raises(ValueError, match="The passed save_path is not a valid checkpoint: /nowhere"):
        trained.evaluate(models.once, checkpoint_path="/nowhere/model.ckpt-1")


def test_an_early_stopping_hook_sees_the_evaluation_of_its_step(tmp_path: Path) -> None:
    estimator = E.Estimator(models.linear, str(tmp_path), E.RunConfig(save_checkpoints_steps=5), {"rate": 0.1})
    hook = E.experimental.stop_if_higher_hook(estimator, "loss", 0.0, run_every_secs=None, run_every_steps=1)
    results, _ = E.train_and_evaluate(
        estimator, E.TrainSpec(models.repeated, 30, hooks=[hook]), E.EvalSpec(models.once, throttle_secs=0)
    )
    assert results["global_step"] in (5, 6)  # tf.estimator reads the step while it changes


def test_a_second_evaluator_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": CLUSTER, "task": {"type": "evaluator", "index": 1}}))
    second = E.Estimator(models.linear, str(tmp_path))
    with pytest.raises(ValueError, match="there can only be one `evaluator` task"):
        E.train_and_evaluate(second, E.TrainSpec(models.repeated, 1), E.EvalSpec(models.once))


def test_the_last_evaluation_runs_before_training_hooks_end(tmp_path: Path) -> None:
    seen: list[str] = []

    class Hook(v1.train.SessionRunHook):  # type: ignore[misc,name-defined]
        def __init__(self, name: str) -> None:
            self._name = name

        def begin(self) -> None:
            seen.append(f"{self._name} begins")

        def end(self, session: Any) -> None:
            seen.append(f"{self._name} ends")

    estimator = E.Estimator(models.linear, str(tmp_path), params={"rate": 0.1})
    E.train_and_evaluate(
        estimator,
        E.TrainSpec(models.repeated, 2, hooks=[Hook("training")]),
        E.EvalSpec(models.once, hooks=[Hook("evaluation")], throttle_secs=0),
    )
    assert seen == ["training begins", "evaluation begins", "evaluation ends", "training ends"]


def test_early_stopping_on_an_unknown_metric_is_an_error(fresh: Any) -> None:
    fresh.train(models.repeated, steps=1)
    fresh.evaluate(models.once)
    hook = E.experimental.stop_if_higher_hook(fresh, "none", 0.0, run_every_secs=None, run_every_steps=1)
    hook.begin = lambda: None  # this test calls the condition directly
    with pytest.raises(KeyError, match="none"):
        hook._should_stop() if hasattr(hook, "_should_stop") else hook._should_stop_fn()


def constant(value: Any) -> Callable[[], Any]:
    return lambda: tf.constant(value)


@pytest.mark.parametrize(
    "settings, error, text",
    [
        ({"loss": lambda: 1.0, "train_op": tf.no_op}, TypeError, "loss must be Tensor, given: 1.0"),
        ({"loss": constant([1.0, 2.0]), "train_op": tf.no_op}, ValueError, "Loss must be scalar, given: Tensor"),
        ({"predictions": lambda: "x", "mode": "infer"}, TypeError, "^predictions must be Tensor, given: x"),
        (
            {"loss": constant(1.0), "train_op": tf.no_op, "training_hooks": lambda: ["x"]},
            TypeError,
            "All hooks must be SessionRunHook instances, given: x",
        ),
    ],
)
def test_malformed_specs_are_refused(settings: dict[str, Any], error: type[Exception], text: str) -> None:
    with tf.Graph().as_default(), pytest.raises(error, match=text):
        made = {name: value() if callable(value) else value for name, value in settings.items()}
        E.EstimatorSpec(**{"mode": "train", **made})


def test_a_malformed_loss_is_told_before_missing_predictions() -> None:
    with tf.Graph().as_default(), pytest.raises(TypeError, match=r"loss must be Tensor, given: 1\.0"):
        E.EstimatorSpec("infer", loss=1.0)


def test_a_spec_copies_predictions_and_keeps_the_callers_metrics() -> None:
    with tf.Graph().as_default():
        predictions, metrics = {"p": tf.constant(1.0)}, {"m": tf.compat.v1.metrics.mean([1.0])}
        spec = E.EstimatorSpec("eval", predictions, tf.constant(1.0), eval_metric_ops=metrics)
        predictions["other"] = metrics["late"] = tf.constant(2.0)
    assert list(spec.predictions) == ["p"]
    assert list(spec.eval_metric_ops) == ["m", "late"]


def test_a_replaced_config_has_its_own_session_config() -> None:
    first = E.RunConfig(session_config=tf.compat.v1.ConfigProto())
    second = first.replace(tf_random_seed=3)
    second.session_config.log_device_placement = True
    assert not first.session_config.log_device_placement


def test_the_embeddings_of_a_tpu_can_be_imported() -> None:
    from tensorflow_estimator._api.v1.estimator.tpu import experimental as first
    from tensorflow_estimator.python.estimator.api._v1.estimator.tpu import experimental as second

    assert first.EmbeddingConfigSpec is second.EmbeddingConfigSpec
    assert tf.compat.v1.estimator.tpu.experimental.EmbeddingConfigSpec is first.EmbeddingConfigSpec
    assert "feature_columns" in first.EmbeddingConfigSpec._fields


def test_a_loss_of_another_graph_is_refused() -> None:
    with tf.Graph().as_default():
        loss = tf.constant(1.0)
    with tf.Graph().as_default(), pytest.raises(ValueError, match='loss with "Const:0" must be from the default graph'):
        E.EstimatorSpec("train", loss=loss, train_op=tf.no_op())


@pytest.mark.parametrize(
    "model_fn, text",
    [
        (lambda labels: None, "must include features argument"),
        (lambda features, other: None, r"has following not expected args: \['other'\]"),
    ],
)
def test_model_fn_arguments_are_checked(model_fn: Any, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        E.Estimator(model_fn)


@pytest.mark.parametrize(
    "config, text",
    [
        ({"cluster": CLUSTER}, "task type must be set"),
        ({"cluster": CLUSTER, "task": {"type": "worker"}}, "task index must be set"),
        ({"cluster": CLUSTER, "task": {"type": "worker", "index": -1}}, "Task index must be non-negative number"),
        ({"cluster": CLUSTER, "task": {"type": "other", "index": 0}}, "other is not a valid task_type in the cluster"),
        ({"cluster": CLUSTER, "task": {"type": "worker", "index": 3}}, "3 is not a valid task_id for task_type worker"),
        ({"cluster": {"worker": ["b:2"]}, "task": {"type": "worker", "index": 0}}, 'it must have one "chief" node'),
        (
            {"cluster": {"chief": ["a:1", "c:3"]}, "task": {"type": "chief", "index": 0}},
            'must have only one "chief" node',
        ),
        ({"task": {"type": "evaluator", "index": 0}}, 'If "cluster" is not set in TF_CONFIG, task type must be WORKER'),
        ({"task": {"type": "worker", "index": 1}}, 'If "cluster" is not set in TF_CONFIG, task index must be 0'),
        (
            {"cluster": {"master": ["a:1"], **CLUSTER}, "task": {"type": "master", "index": 0}},
            "If `master` node exists in `cluster`, job `chief` is not supported",
        ),
        (
            {"cluster": {"master": ["a:1"]}, "task": {"type": "evaluator", "index": 0}},
            "If `master` node exists in `cluster`, task_type `evaluator` is not supported",
        ),
        ({"model_dir": ""}, "model_dir in TF_CONFIG should be non-empty"),
    ],
)
def test_malformed_clusters_are_refused(config: Any, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TF_CONFIG", json.dumps(config))
    with pytest.raises(ValueError, match=text):
        E.RunConfig()


def test_model_dir_may_come_from_tf_config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TF_CONFIG", json.dumps({"model_dir": str(tmp_path)}))
    assert E.RunConfig().model_dir == E.Estimator(models.linear).model_dir == str(tmp_path)
    with pytest.raises(ValueError, match="must have the same value as the model_dir in TF_CONFIG"):
        E.RunConfig(model_dir="other")


def test_the_service_in_tf_config_must_be_a_dict(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TF_CONFIG", json.dumps({"service": 3}))
    with pytest.raises(TypeError, match=r'If "service" is set in TF_CONFIG, it must be a dict. Given'):
        E.RunConfig()


@pytest.mark.parametrize(
    "settings, text",
    [
        ({"protocol": "http"}, "protocol should be grpc or grpc"),
        ({"model_dir": ""}, "model_dir should be non-empty"),
        ({"session_creation_timeout_secs": 0}, "session_creation_timeout_secs should be > 0"),
        ({"experimental_max_worker_delay_secs": "x"}, "experimental_max_worker_delay_secs must be an integer if set"),
    ],
)
def test_settings_out_of_range_are_refused(settings: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        E.RunConfig(**settings)


def test_unknown_settings_are_named() -> None:
    with pytest.raises(TypeError, match=r"got an unexpected keyword argument 'other'"):
        E.RunConfig(other=1)
    with pytest.raises(ValueError, match=r"Replacing other is not supported. Allowed properties are \['model_dir', "):
        E.RunConfig().replace(other=1)


@pytest.mark.parametrize(
    "y, text",
    [
        (A[:3], r"mismatched. All elements in x and y must have the same length.\nShapes in x: \{'a': \(5,\)\}"),
        ({"a": A}, "1 duplicate keys are found in both x and y: {'a'}"),
    ],
)
def test_mismatched_arrays_are_refused(y: Any, text: str) -> None:
    with tf.Graph().as_default(), pytest.raises(ValueError, match=text):
        v1.estimator.inputs.numpy_input_fn({"a": A}, y, shuffle=False)()


@pytest.mark.parametrize(
    "compare_fn, text",
    [
        (None, "`compare_fn` must not be None"),
        (lambda current_eval_result: True, r"compare_fn \(.*\) must include best_eval_result argument"),
    ],
)
def test_compare_fn_arguments_are_checked(compare_fn: Any, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        E.BestExporter("best", models.serving, compare_fn=compare_fn)


def test_serving_features_may_have_integer_keys() -> None:
    with tf.Graph().as_default():
        receiver = E.export.ServingInputReceiver({1: tf.constant(1)}, {"a": tf.constant(1)})
    assert list(receiver.features) == [1]


@pytest.mark.parametrize("estimator, train, evaluate", [(None, 0, 0), (0, "x", 0), (0, 0, "x")])
def test_train_and_evaluate_checks_the_types_of_its_arguments(
    fresh: Any, estimator: Any, train: Any, evaluate: Any
) -> None:
    given = (
        fresh if estimator == 0 else estimator,
        E.TrainSpec(models.repeated, 1) if train == 0 else train,
        E.EvalSpec(models.once) if evaluate == 0 else evaluate,
    )
    with pytest.raises(TypeError, match=r"must have type `tf.estimator.\w+`. Got: <class"):
        E.train_and_evaluate(*given)


def test_exporter_names_must_differ() -> None:
    twice = [E.FinalExporter("a", models.serving), E.LatestExporter("a", models.serving)]
    with pytest.raises(ValueError, match=r"must have unique names. .* All exporter names: \['a', 'a'\]"):
        E.EvalSpec(models.once, exporters=twice)


def test_early_stopping_logs_the_reason(fresh: Any, caplog: pytest.LogCaptureFixture) -> None:
    fresh.train(models.repeated, steps=1)
    fresh.evaluate(models.once)
    hook = E.experimental.stop_if_higher_hook(fresh, "loss", 0.0, run_every_secs=None, run_every_steps=1)
    with caplog.at_level(logging.INFO, "tensorflow"):
        (hook._should_stop if hasattr(hook, "_should_stop") else hook._should_stop_fn)()
    assert "which is greater than the configured threshold (0.0) for early stopping." in caplog.text


def test_export_savedmodel_still_works(trained: Any, tmp_path: Path) -> None:
    estimator = v1.estimator.Estimator(models.linear, trained.model_dir, params={"rate": 0.1})
    path = estimator.export_savedmodel(str(tmp_path), models.serving, strip_default_attrs=True)
    assert (Path(path.decode()) / "saved_model.pb").exists()
