"""train_and_evaluate with its specs, exporters, SavedModels and early stopping, as tf.estimator 2.15 documents them."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from cerebras_tensorflow.estimator.export.exporters import loss_is_smaller
from cerebras_tensorflow.estimator.training.early_stopping import read_eval_metrics
from tests.compat import models

TrainSpec, EvalSpec = tf.estimator.TrainSpec, tf.estimator.EvalSpec
export = tf.estimator.export


class Exporter(tf.estimator.Exporter):
    """Records its calls."""

    def __init__(self, name: Any) -> None:
        self._name = name
        self.calls: list[tuple[int, bool]] = []

    @property
    def name(self) -> Any:
        return self._name

    def export(
        self, estimator: Any, export_path: str, checkpoint_path: str, eval_result: Any, is_the_final_export: bool
    ) -> str:
        self.calls.append((eval_result["global_step"], is_the_final_export))
        return f"{export_path}|{Path(checkpoint_path).name}"


def estimator_in(folder: Path, every: int = 2) -> Any:
    config = tf.estimator.RunConfig(save_checkpoints_steps=every, keep_checkpoint_max=0)
    return tf.estimator.Estimator(models.linear, str(folder), config, {"rate": 0.1})


# the specs


@pytest.mark.parametrize("value", [0, -1])
def test_train_spec_refuses_max_steps_below_1(value: int) -> None:
    with pytest.raises(ValueError, match=f"Must specify max_steps > 0, given: {value}"):
        TrainSpec(models.once, max_steps=value)


@pytest.mark.parametrize("kind", [TrainSpec, EvalSpec], ids=["train", "eval"])
@pytest.mark.parametrize("value", [3, "fn", None], ids=["int", "str", "none"])
def test_input_fn_must_be_callable(kind: Any, value: Any) -> None:
    with pytest.raises(TypeError, match="`input_fn` must be callable"):
        kind(value)


@pytest.mark.parametrize("kind", [TrainSpec, EvalSpec], ids=["train", "eval"])
@pytest.mark.parametrize("value", [[3], ["hook"], [object()]], ids=["int", "str", "object"])
def test_hooks_must_be_session_run_hooks(kind: Any, value: Any) -> None:
    with pytest.raises(TypeError, match="All hooks must be `SessionRunHook` instances"):
        kind(models.once, hooks=value)


@pytest.mark.parametrize(
    "kind, name, value",
    [
        (TrainSpec, "max_steps", None),
        (TrainSpec, "hooks", ()),
        (TrainSpec, "saving_listeners", ()),
        (EvalSpec, "steps", 100),
        (EvalSpec, "name", None),
        (EvalSpec, "hooks", ()),
        (EvalSpec, "exporters", ()),
        (EvalSpec, "start_delay_secs", 120),
        (EvalSpec, "throttle_secs", 600),
    ],
)
def test_defaults_of_the_specs(kind: Any, name: str, value: Any) -> None:
    assert getattr(kind(models.once), name) == value


@pytest.mark.parametrize(
    "change, error, text",
    [
        ({"steps": 0}, ValueError, "Must specify steps > 0, given: 0"),
        ({"steps": -1}, ValueError, "Must specify steps > 0, given: -1"),
        ({"name": 3}, TypeError, "`name` must be string, given: 3"),
        ({"start_delay_secs": -1}, ValueError, "Must specify start_delay_secs >= 0, given: -1"),
        ({"throttle_secs": -1}, ValueError, "Must specify throttle_secs >= 0, given: -1"),
        ({"exporters": 3}, TypeError, "`exporters` must be an Exporter"),
        ({"exporters": "x"}, TypeError, "`exporters` must be an Exporter"),
        ({"exporters": [3]}, TypeError, "`exporters` must be an Exporter"),
        ({"exporters": [Exporter("a"), Exporter("a")]}, ValueError, "`exporters` must have unique names"),
        ({"exporters": [Exporter(None)]}, ValueError, "cannot have a name that is `None` or empty"),
        ({"exporters": [Exporter("")]}, ValueError, "cannot have a name that is `None` or empty"),
        ({"exporters": [Exporter(3)]}, ValueError, "must have a string name"),
    ],
    ids=["steps", "steps-", "name", "delay", "throttle", "int", "str", "list", "twice", "none", "empty", "number"],
)
def test_eval_spec_refuses(change: dict[str, Any], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        EvalSpec(models.once, **change)


def test_one_exporter_needs_no_list() -> None:
    exporter = Exporter("a")
    assert EvalSpec(models.once, exporters=exporter).exporters == (exporter,)


# the loop


@pytest.mark.parametrize("name", ["estimator", "train_spec", "eval_spec"])
def test_the_loop_refuses_other_types(name: str, fresh: Any) -> None:
    given: dict[str, Any] = {
        "estimator": fresh,
        "train_spec": TrainSpec(models.once, 1),
        "eval_spec": EvalSpec(models.once),
    }
    with pytest.raises(TypeError, match=f"`{name}` must have type"):
        tf.estimator.train_and_evaluate(**{**given, name: 3})


def test_evaluations_follow_checkpoints_and_the_end(tmp_path: Path) -> None:
    exporter = Exporter("mine")
    result = tf.estimator.train_and_evaluate(
        estimator_in(tmp_path),
        TrainSpec(models.repeated, max_steps=5),
        EvalSpec(models.once, steps=None, exporters=exporter, throttle_secs=0),
    )
    assert exporter.calls == [(2, False), (4, False), (5, True)]
    metrics, exports = result
    assert metrics["global_step"] == 5
    assert exports == [f"{tmp_path}/export/mine|model.ckpt-5"]


def test_throttling_keeps_the_last_evaluation(tmp_path: Path) -> None:
    exporter = Exporter("mine")
    spec = EvalSpec(models.once, steps=None, exporters=exporter, throttle_secs=600)
    tf.estimator.train_and_evaluate(estimator_in(tmp_path), TrainSpec(models.repeated, max_steps=6), spec)
    assert exporter.calls == [(2, False), (6, True)]


def test_a_resumed_run_evaluates_its_first_checkpoint(tmp_path: Path) -> None:
    estimator_in(tmp_path).train(models.repeated, max_steps=2)
    exporter = Exporter("mine")
    spec = EvalSpec(models.once, steps=None, exporters=exporter, throttle_secs=0)
    tf.estimator.train_and_evaluate(estimator_in(tmp_path), TrainSpec(models.repeated, max_steps=6), spec)
    assert exporter.calls == [(4, False), (6, True)]


def test_without_max_steps_the_input_ends_the_loop(tmp_path: Path) -> None:
    result, _ = tf.estimator.train_and_evaluate(
        estimator_in(tmp_path), TrainSpec(models.once), EvalSpec(models.once, throttle_secs=600)
    )
    assert result["global_step"] == 4


def test_a_finished_run_is_not_evaluated_again(tmp_path: Path) -> None:
    estimator = estimator_in(tmp_path)
    estimator.train(models.repeated, max_steps=2)
    assert tf.estimator.train_and_evaluate(
        estimator, TrainSpec(models.repeated, max_steps=2), EvalSpec(models.once)
    ) == (None, None)


def test_training_is_the_same_with_evaluations_in_between(tmp_path: Path) -> None:
    plain = estimator_in(tmp_path / "plain").train(models.repeated, max_steps=6)
    between = estimator_in(tmp_path / "between")
    spec = EvalSpec(models.once, throttle_secs=0)
    tf.estimator.train_and_evaluate(between, TrainSpec(models.repeated, max_steps=6), spec)
    assert np.array_equal(plain.get_variable_value("w"), between.get_variable_value("w"))


# tasks of a cluster


class TrainsOn(tf.compat.v1.train.SessionRunHook):  # type: ignore[misc,name-defined]
    """Stands in for the chief's process: after each evaluation, trains to the next of the given steps."""

    def __init__(self, estimator: Any, steps: list[int]) -> None:
        self._estimator = estimator
        self._steps = list(steps)

    def end(self, session: Any) -> None:
        if self._steps:
            self._estimator.train(models.repeated, max_steps=self._steps.pop(0))


def as_task(patch: pytest.MonkeyPatch, kind: str, index: int = 0) -> None:
    cluster = {"chief": ["localhost:1"]}
    patch.setenv("TF_CONFIG", json.dumps({"cluster": cluster, "task": {"type": kind, "index": index}}))


def test_an_evaluator_evaluates_checkpoints_until_the_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chief = estimator_in(tmp_path).train(models.repeated, max_steps=2)
    hook, exporter = TrainsOn(chief, [4, 5]), Exporter("mine")
    spec = EvalSpec(models.once, None, "mine", [hook], exporter, start_delay_secs=0, throttle_secs=0)
    as_task(monkeypatch, "evaluator")
    assert tf.estimator.train_and_evaluate(estimator_in(tmp_path), TrainSpec(models.repeated, 5), spec) is None
    assert exporter.calls == [(2, False), (4, False), (5, True)]
    assert sorted(read_eval_metrics(str(tmp_path / "eval_mine"))) == [2, 4, 5]


@pytest.mark.parametrize("delay", [0, 0.1])
def test_an_evaluator_logs_that_it_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, delay: float
) -> None:
    chief = estimator_in(tmp_path).train(models.repeated, max_steps=2)
    spec = EvalSpec(models.once, None, None, [TrainsOn(chief, [4])], None, delay, throttle_secs=delay and 60)
    slept: list[float] = []
    monkeypatch.setattr(time, "sleep", slept.append)
    as_task(monkeypatch, "evaluator")
    with caplog.at_level(logging.INFO, "tensorflow"):
        tf.estimator.train_and_evaluate(estimator_in(tmp_path), TrainSpec(models.repeated, 4), spec)
    assert "Exiting evaluation, global_step=4 >= train max_steps=4" in caplog.text
    assert ("Waiting 0.100000 secs before starting eval." in caplog.text) == bool(delay)
    assert ("secs before starting next eval run." in caplog.text) == bool(delay)
    assert slept[:1] == ([0.1] if delay else [])


def test_an_evaluator_logs_that_it_waits_for_a_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    chief = estimator_in(tmp_path)
    monkeypatch.setattr(time, "sleep", lambda wall_s: chief.train(models.repeated, max_steps=2))
    as_task(monkeypatch, "evaluator")
    spec = EvalSpec(models.once, start_delay_secs=0, throttle_secs=600)
    tf.estimator.train_and_evaluate(estimator_in(tmp_path), TrainSpec(models.repeated, 2), spec)
    assert "Estimator is not trained yet. Will start an evaluation when a checkpoint is ready." in caplog.text
    assert sorted(read_eval_metrics(str(tmp_path / "eval"))) == [2]


@pytest.mark.parametrize("task", ["evaluator", "ps"])
def test_evaluators_and_parameter_servers_refuse_to_train(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, task: str
) -> None:
    cluster = {"chief": ["a:1"], "ps": ["b:2"]}
    monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": cluster, "task": {"type": task, "index": 0}}))
    with pytest.raises(ValueError, match="Train has been called wrong configuration"):
        estimator_in(tmp_path).train(models.repeated, max_steps=2)


def test_a_chief_trains_without_evaluating(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    as_task(monkeypatch, "chief")
    exporter = Exporter("mine")
    estimator = estimator_in(tmp_path)
    spec = EvalSpec(models.once, exporters=exporter, throttle_secs=0)
    assert tf.estimator.train_and_evaluate(estimator, TrainSpec(models.repeated, 4), spec) is None
    assert (exporter.calls, estimator.get_variable_value("global_step")) == ([], 4)


def test_a_task_without_a_cluster_trains_and_evaluates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TF_CONFIG", json.dumps({"task": {"type": "worker", "index": 0}}))
    metrics, _ = tf.estimator.train_and_evaluate(
        estimator_in(tmp_path), TrainSpec(models.repeated, 2), EvalSpec(models.once)
    )
    assert metrics["global_step"] == 2


# exporters


@pytest.mark.parametrize("kind", ["LatestExporter", "BestExporter"])
@pytest.mark.parametrize("keep", [0, -1])
def test_exports_to_keep_must_be_positive(kind: str, keep: int) -> None:
    with pytest.raises(ValueError, match=r"`exports_to_keep`, if provided, must be (a )?positive number"):
        getattr(tf.estimator, kind)("name", models.serving, exports_to_keep=keep)


@pytest.mark.parametrize("kind", ["FinalExporter", "LatestExporter", "BestExporter"])
def test_exporters_have_their_name(kind: str) -> None:
    assert getattr(tf.estimator, kind)("name", models.serving).name == "name"


def test_compare_fn_must_take_both_results() -> None:
    with pytest.raises(ValueError, match="best_eval_result"):
        tf.estimator.BestExporter(serving_input_receiver_fn=models.serving, compare_fn=lambda current_eval_result: True)


@pytest.mark.parametrize("kind, number", [("FinalExporter", 1), ("LatestExporter", 2), ("BestExporter", 2)])
def test_exporters_in_the_loop(tmp_path: Path, kind: str, number: int) -> None:
    more = {} if kind == "FinalExporter" else {"exports_to_keep": 2}
    exporter = getattr(tf.estimator, kind)("e", models.serving, **more)
    _, exports = tf.estimator.train_and_evaluate(
        estimator_in(tmp_path),
        TrainSpec(models.repeated, max_steps=6),
        EvalSpec(models.once, exporters=exporter, throttle_secs=0),
    )
    folders = sorted((tmp_path / "export" / "e").iterdir())
    assert len(folders) == number
    assert exports[0].decode() == str(folders[-1])


def test_the_best_exporter_exports_first_and_then_better_results(trained: Any, tmp_path: Path) -> None:
    exporter = tf.estimator.BestExporter("e", models.serving)
    (tmp_path / "7").mkdir()  # not an export: kept

    def export(loss: float) -> bool:
        result = {"loss": loss, "global_step": 20}
        return exporter.export(trained, str(tmp_path), trained.latest_checkpoint(), result, False) is not None

    assert [export(loss) for loss in (9.0, 5.0, 6.0, 4.0)] == [True, True, False, True]
    assert (tmp_path / "7").is_dir()


@pytest.mark.parametrize("best, current, smaller", [(2.0, 1.0, True), (1.0, 2.0, False), (1.0, 1.0, False)])
def test_results_are_compared_by_loss_by_default(best: float, current: float, smaller: bool) -> None:
    assert loss_is_smaller({"loss": best}, {"loss": current}) == smaller


@pytest.mark.parametrize("best, current", [({}, {"loss": 1}), ({"loss": 1}, {}), ({"a": 1}, {"loss": 1})])
def test_results_without_a_loss_are_refused(best: Any, current: Any) -> None:
    with pytest.raises(ValueError, match="cannot be empty or no loss is found in it"):
        loss_is_smaller(best, current)


# SavedModels


@pytest.mark.parametrize("as_text", [False, True])
def test_a_saved_model_gives_the_predictions(trained: Any, tmp_path: Path, as_text: bool) -> None:
    path = trained.export_saved_model(str(tmp_path), models.serving, as_text=as_text)
    assert isinstance(path, bytes)
    assert (Path(path.decode()) / ("saved_model.pbtxt" if as_text else "saved_model.pb")).exists()
    served = tf.saved_model.load(path.decode()).signatures["serving_default"](x=tf.constant(models.X))
    predicted = np.stack([sample["p"] for sample in trained.predict(models.once)])
    np.testing.assert_allclose(served["p"], predicted, rtol=1e-5, atol=1e-6)


def test_each_export_has_its_own_folder(trained: Any, tmp_path: Path) -> None:
    paths = {trained.export_saved_model(str(tmp_path), models.serving) for _ in range(3)}
    assert len(paths) == 3
    assert all(entry.name.isdigit() for entry in tmp_path.iterdir())


def test_assets_extra_are_copied(trained: Any, tmp_path: Path) -> None:
    (tmp_path / "vocab.txt").write_text("words", encoding="utf-8")
    assets = {"sub/vocab.txt": str(tmp_path / "vocab.txt")}
    path = trained.export_saved_model(str(tmp_path / "out"), models.serving, assets_extra=assets)
    assert (Path(path.decode()) / "assets.extra" / "sub" / "vocab.txt").read_text(encoding="utf-8") == "words"


def test_an_export_needs_a_checkpoint(fresh: Any, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="Couldn't find trained model at"):
        fresh.export_saved_model(str(tmp_path), models.serving)


def test_an_export_needs_a_receiver(trained: Any, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="must be defined"):
        trained.export_saved_model(str(tmp_path), None)


@pytest.mark.parametrize(
    "make, text",
    [
        (lambda t: export.ServingInputReceiver(None, t), "features must be defined"),
        (lambda t: export.ServingInputReceiver({1.5: t}, t), "feature keys must be strings"),
        (lambda t: export.ServingInputReceiver({"a": 1}, t), "feature a must be a Tensor"),
        (lambda t: export.ServingInputReceiver(t, None), "receiver_tensors must be defined"),
        (lambda t: export.ServingInputReceiver(t, {1: t}), "receiver_tensor keys must be strings"),
        (lambda t: export.ServingInputReceiver(t, {"a": 1}), "receiver_tensor a must be a Tensor"),
        (lambda t: export.ServingInputReceiver(t, t, 3), "receiver_tensors_alternatives must be a dict"),
        (lambda t: export.TensorServingInputReceiver(None, t), "features must be defined"),
        (lambda t: export.TensorServingInputReceiver({"a": t}, t), "feature must be a Tensor"),
    ],
)
def test_malformed_receivers_are_refused(make: Callable[[Any], Any], text: str) -> None:
    with tf.Graph().as_default(), pytest.raises(ValueError, match=text):
        make(tf.constant([1.0]))


def test_single_tensors_get_the_documented_keys() -> None:
    with tf.Graph().as_default():
        tensor = tf.constant([1.0])
        receiver = export.ServingInputReceiver(tensor, tensor)
        assert (list(receiver.features), list(receiver.receiver_tensors)) == (["feature"], ["input"])
        assert export.TensorServingInputReceiver(tensor, tensor).features is tensor


@pytest.mark.parametrize("batch", [None, 4])
def test_raw_receivers_have_a_placeholder_for_each_feature(batch: int | None) -> None:
    with tf.Graph().as_default():
        features = {"a": tf.zeros([2, 3]), "b": tf.zeros([2], tf.int64)}
        receiver = export.build_raw_serving_input_receiver_fn(features, batch)()
        assert receiver.features["a"].shape.as_list() == [batch, 3]
        assert receiver.features["b"].dtype == tf.int64
        assert receiver.receiver_tensors["a"] is receiver.features["a"]


@pytest.mark.parametrize("named", [True, False])
def test_supervised_receivers_have_features_and_labels(named: bool) -> None:
    build = tf.estimator.experimental.build_raw_supervised_input_receiver_fn
    with tf.Graph().as_default():
        x, y = tf.zeros([2, 3]), tf.zeros([2, 1])
        receiver = build({"x": x} if named else x, {"y": y} if named else y)()
        assert list(receiver.receiver_tensors) == (["x", "y"] if named else ["input", "label"])
        features = receiver.features["x"] if named else receiver.features
        assert (features.shape.as_list(), isinstance(receiver.labels, dict)) == ([None, 3], named)
        with pytest.raises(ValueError, match=r"Features and labels must have distinct keys. Found overlapping keys"):
            build({"x": x}, {"x": y})


def test_one_saved_model_has_the_graphs_of_all_modes(trained: Any, tmp_path: Path) -> None:
    features, labels = {"x": tf.zeros([1, 3])}, tf.zeros([1, 1])
    supervised = tf.estimator.experimental.build_raw_supervised_input_receiver_fn(features, labels)
    keys = tf.estimator.ModeKeys
    receivers = {keys.PREDICT: models.serving, keys.EVAL: supervised, keys.TRAIN: supervised}
    path = trained.experimental_export_all_saved_models(str(tmp_path), receivers).decode()
    expected = trained.evaluate(lambda: models.once().take(1), name="exported")
    for tag, outputs in (("serve", ["p", "twice"]), ("eval", ["loss", "metrics/mae"]), ("train", ["loss"])):
        with tf.Graph().as_default(), tf.compat.v1.Session() as session:
            (signature,) = [
                value
                for key, value in tf.compat.v1.saved_model.load(session, [tag], path).signature_def.items()
                if key in ("serving_default", "eval", "train")
            ]
            assert set(outputs) <= {name.removesuffix("/value") for name in signature.outputs}
            if tag == "eval":
                feeds = {signature.inputs["x"].name: models.X[:8], signature.inputs["label"].name: models.Y[:8]}
                loss = session.run(signature.outputs["loss"].name, feeds)
                np.testing.assert_allclose(loss, expected["loss"], rtol=1e-5)
    with pytest.raises(ValueError, match="No valid modes for exporting found"):
        trained.experimental_export_all_saved_models(str(tmp_path), {})


def test_parsing_receivers_take_examples() -> None:
    spec = {"x": tf.io.FixedLenFeature([2], tf.float32)}
    example = tf.train.Example(features=tf.train.Features(feature={
        "x": tf.train.Feature(float_list=tf.train.FloatList(value=[1.0, 2.0]))
    }))  # fmt: skip
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        receiver = export.build_parsing_serving_input_receiver_fn(spec)()
        assert list(receiver.receiver_tensors) == ["examples"]
        feeds = {receiver.receiver_tensors["examples"]: [example.SerializeToString()]}
        assert session.run(receiver.features["x"], feeds).tolist() == [[1.0, 2.0]]


@pytest.mark.parametrize(
    "make, text",
    [
        (lambda: export.ClassificationOutput(), "scores"),
        (lambda: export.ClassificationOutput(scores=tf.constant(["a"])), "scores must be a float32 Tensor"),
        (lambda: export.ClassificationOutput(classes=tf.constant([1.0])), "classes must be a string Tensor"),
        (lambda: export.RegressionOutput(tf.constant(["a"])), "must be a float32 Tensor"),
        (lambda: export.PredictOutput({"p": 1}), "must be a Tensor"),
    ],
    ids=["empty", "scores", "classes", "value", "predict"],
)
def test_malformed_export_outputs_are_refused(make: Callable[[], Any], text: str) -> None:
    with tf.Graph().as_default(), pytest.raises(ValueError, match=text):
        make()


@pytest.mark.parametrize("output", ["ClassificationOutput", "RegressionOutput", "PredictOutput"])
def test_signatures_of_each_output(tmp_path: Path, output: str) -> None:
    def model(features: Any, labels: Any, mode: str, params: Any) -> Any:
        spec = models.linear(features, labels, mode, params)
        if mode != tf.estimator.ModeKeys.PREDICT:
            return spec
        value = spec.predictions["p"]
        made = {
            "ClassificationOutput": lambda: export.ClassificationOutput(scores=value),
            "RegressionOutput": lambda: export.RegressionOutput(value),
            "PredictOutput": lambda: export.PredictOutput({"p": value}),
        }[output]()
        return spec._replace(export_outputs={"serving_default": made})

    def receiver() -> Any:
        text = tf.compat.v1.placeholder(tf.string, [None])
        features = tf.io.parse_example(text, {"x": tf.io.FixedLenFeature([3], tf.float32)})
        return export.ServingInputReceiver(features, {"examples": text})

    estimator = tf.estimator.Estimator(model, str(tmp_path / "m"), params={}).train(models.repeated, steps=1)
    path = estimator.export_saved_model(str(tmp_path / "out"), receiver).decode()
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        meta = tf.compat.v1.saved_model.load(session, ["serve"], path)
        method = meta.signature_def["serving_default"].method_name
    assert method == f"tensorflow/serving/{ {'C': 'classify', 'R': 'regress', 'P': 'predict'}[output[0]] }"


# early stopping


@pytest.mark.parametrize(
    "seconds, steps, text",
    [
        (1, 1, "Only one of `run_every_secs` and `run_every_steps` must be set"),
        (None, None, "Either every_secs or every_steps should be provided"),
    ],
)
def test_an_early_stopping_hook_needs_one_interval(fresh: Any, seconds: Any, steps: Any, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        tf.estimator.experimental.make_early_stopping_hook(fresh, lambda: True, seconds, steps)


def test_an_early_stopping_hook_needs_an_estimator() -> None:
    with pytest.raises(TypeError, match=r"`estimator` must have type `tf\.estimator\.Estimator`"):
        tf.estimator.experimental.make_early_stopping_hook(3, lambda: True)


@pytest.mark.parametrize("stops", [True, False])
def test_an_early_stopping_hook_calls_its_condition(fresh: Any, stops: bool) -> None:
    hook = tf.estimator.experimental.make_early_stopping_hook(fresh, lambda: stops, None, 1)
    fresh.train(models.repeated, hooks=[hook], max_steps=3)
    assert int(fresh.get_variable_value("global_step")) == (1 if stops else 3)


def write_metrics(folder: Path, values: dict[int, float]) -> None:
    with tf.Graph().as_default():
        writer = tf.compat.v1.summary.FileWriter(str(folder))
    for step, value in values.items():
        summary = tf.compat.v1.Summary(value=[tf.compat.v1.Summary.Value(tag="m", simple_value=value)])
        writer.add_summary(summary, step)
    writer.close()


@pytest.mark.parametrize(
    "name, argument, values, stops",
    [
        ("stop_if_higher_hook", 5.0, {1: 4.0, 2: 6.0}, True),
        ("stop_if_higher_hook", 5.0, {1: 4.0, 2: 5.0}, False),
        ("stop_if_lower_hook", 5.0, {1: 4.0}, True),
        ("stop_if_lower_hook", 5.0, {1: 5.0, 2: 6.0}, False),
        ("stop_if_no_decrease_hook", 10, {1: 1.0, 11: 1.0}, True),
        ("stop_if_no_decrease_hook", 10, {1: 1.0, 10: 2.0}, False),
        ("stop_if_no_decrease_hook", 10, {1: 1.0, 10: 0.5, 19: 0.6}, False),
        ("stop_if_no_increase_hook", 10, {1: 1.0, 11: 1.0}, True),
        ("stop_if_no_increase_hook", 10, {1: 1.0, 10: 2.0, 19: 1.0}, False),
        ("stop_if_no_increase_hook", 10, {}, False),
    ],
)
def test_metrics_stop_a_run(fresh: Any, tmp_path: Path, name: str, argument: float, values: Any, stops: bool) -> None:
    write_metrics(tmp_path / "metrics", values)
    make = getattr(tf.estimator.experimental, name)
    hook = make(fresh, "m", argument, eval_dir=str(tmp_path / "metrics"), run_every_secs=None, run_every_steps=1)
    fresh.train(models.repeated, hooks=[hook], max_steps=3)
    assert (int(fresh.get_variable_value("global_step")) < 3) == stops


def test_min_steps_delays_early_stopping(fresh: Any, tmp_path: Path) -> None:
    write_metrics(tmp_path, {1: 9.0})
    hook = tf.estimator.experimental.stop_if_higher_hook(
        fresh, "m", 5.0, eval_dir=str(tmp_path), min_steps=2, run_every_secs=None, run_every_steps=1
    )
    fresh.train(models.repeated, hooks=[hook], max_steps=3)
    assert int(fresh.get_variable_value("global_step")) == 3


def test_metrics_of_evaluations_are_read_by_step(tmp_path: Path) -> None:
    write_metrics(tmp_path, {5: 1.0, 2: 3.0})
    assert read_eval_metrics(str(tmp_path)) == {2: {"m": 3.0}, 5: {"m": 1.0}}


# evaluations in memory


def test_an_in_memory_evaluator_evaluates_the_current_weights(tmp_path: Path) -> None:
    config = tf.estimator.RunConfig(save_checkpoints_steps=100)
    estimator = tf.estimator.Estimator(models.linear, str(tmp_path), config, {"rate": 0.1})
    hook = tf.estimator.experimental.InMemoryEvaluatorHook(estimator, models.once, name="mine", every_n_iter=2)
    estimator.train(models.repeated, hooks=[hook], max_steps=5)
    read = read_eval_metrics(str(tmp_path / "eval_mine"))
    assert sorted(read) == [0, 2, 4, 5]
    assert read[0]["loss"] == pytest.approx(np.mean(models.Y**2), rel=1e-5)
    assert read[5] == pytest.approx({k: v for k, v in estimator.evaluate(models.once).items() if k != "global_step"})


@pytest.mark.parametrize(
    "change, error, text",
    [
        ({"every_n_iter": 0}, ValueError, "invalid every_n_iter=0."),
        ({"every_n_iter": None}, ValueError, "invalid every_n_iter=None."),
        ({"steps": 0}, ValueError, "Must specify steps > 0, given: 0"),
        ({"hooks": [3]}, TypeError, "Hooks must be a SessionRunHook, given: 3"),
    ],
)
def test_an_in_memory_evaluator_refuses(fresh: Any, change: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        tf.estimator.experimental.InMemoryEvaluatorHook(fresh, models.once, **change)


def test_an_in_memory_evaluator_refuses_a_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = {"chief": ["a:1"], "worker": ["b:2"]}
    monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": cluster, "task": {"type": "chief", "index": 0}}))
    estimator = tf.estimator.Estimator(models.linear, str(tmp_path))
    with pytest.raises(ValueError, match="supports only single machine"):
        tf.estimator.experimental.InMemoryEvaluatorHook(estimator, models.once)


def test_an_in_memory_evaluator_refuses_a_custom_init_fn(tmp_path: Path) -> None:
    def model(features: Any, labels: Any, mode: str, params: Any) -> Any:
        spec = models.linear(features, labels, mode, params)
        return spec._replace(scaffold=tf.compat.v1.train.Scaffold(init_fn=lambda *given: None))

    estimator = tf.estimator.Estimator(model, str(tmp_path), params={})
    hook = tf.estimator.experimental.InMemoryEvaluatorHook(estimator, models.once)
    with pytest.raises(ValueError, match="InMemoryEvaluator does not support custom init_fn"):
        estimator.train(models.repeated, hooks=[hook], max_steps=1)
