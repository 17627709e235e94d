"""tf.estimator.Estimator: train, evaluate, predict, checkpoints, as tf.estimator 2.15 documents them."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import cerebras_tensorflow
from cerebras_tensorflow.saver.model_dir.async_writer import AsynchronousWriter
from tests.compat import models

V1 = tf.compat.v1.train


class Recorder(V1.SessionRunHook):
    """Records the calls that a hook gets."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.steps: list[int] = []

    def begin(self) -> None:
        self.calls.append("begin")
        self.step = V1.get_global_step()

    def after_create_session(self, session: Any, coord: Any) -> None:
        self.calls.append("after_create_session")

    def before_run(self, run_context: Any) -> Any:
        self.calls.append("before_run")
        return V1.SessionRunArgs({"step": self.step})

    def after_run(self, run_context: Any, run_values: Any) -> None:
        self.calls.append("after_run")
        self.steps.append(int(run_values.results["step"]))

    def end(self, session: Any) -> None:
        self.calls.append("end")


class Listener(V1.CheckpointSaverListener):
    """Records the calls that a saving listener gets."""

    def __init__(self, stop_at: int | None = None) -> None:
        self.calls: list[tuple[str, int | None]] = []
        self._stop_at = stop_at

    def begin(self) -> None:
        self.calls.append(("begin", None))

    def before_save(self, session: Any, global_step_value: int) -> None:
        self.calls.append(("before_save", global_step_value))

    def after_save(self, session: Any, global_step_value: int) -> bool:
        self.calls.append(("after_save", global_step_value))
        return self._stop_at is not None and global_step_value >= self._stop_at

    def end(self, session: Any, global_step_value: int) -> None:
        self.calls.append(("end", global_step_value))


def step_of(estimator: Any) -> int:
    return int(estimator.get_variable_value("global_step"))


# construction


def test_model_fn_is_needed() -> None:
    with pytest.raises(ValueError, match="model_fn must be provided"):
        tf.estimator.Estimator(None)


def test_params_need_a_model_fn_that_takes_them() -> None:
    with pytest.raises(ValueError, match="does not include params argument"):
        tf.estimator.Estimator(lambda features, labels, mode: None, params={"a": 1})


@pytest.mark.parametrize("config", [3, "config", {"a": 1}], ids=["int", "str", "dict"])
def test_config_must_be_a_run_config(config: Any) -> None:
    with pytest.raises(ValueError, match="config must be an instance of `RunConfig`"):
        tf.estimator.Estimator(models.linear, config=config)


def test_two_model_dirs_that_differ_are_refused(tmp_path: Path) -> None:
    config = tf.estimator.RunConfig(model_dir=str(tmp_path / "a"))
    with pytest.raises(ValueError, match="`model_dir` are set both in constructor and `RunConfig`"):
        tf.estimator.Estimator(models.linear, str(tmp_path / "b"), config)


@pytest.mark.parametrize("where", ["constructor", "config", "both"])
def test_model_dir_may_come_from_the_constructor_or_the_config(where: str, tmp_path: Path) -> None:
    folder = str(tmp_path / "m")
    config = tf.estimator.RunConfig(model_dir=folder if where != "constructor" else None)
    estimator = tf.estimator.Estimator(models.linear, folder if where != "config" else None, config)
    assert estimator.model_dir == folder == estimator.config.model_dir


def test_model_dir_may_be_a_path(tmp_path: Path) -> None:
    assert tf.estimator.Estimator(models.linear, tmp_path / "m").model_dir == str(tmp_path / "m")


def test_model_dir_defaults_to_a_new_folder() -> None:
    first, second = tf.estimator.Estimator(models.linear), tf.estimator.Estimator(models.linear)
    assert first.model_dir != second.model_dir


def test_params_are_a_copy() -> None:
    params = {"rate": 0.5}
    estimator = tf.estimator.Estimator(models.linear, params=params)
    estimator.params["rate"] = 1.0
    assert estimator.params == {"rate": 0.5}


@pytest.mark.parametrize(
    "name", ["train", "evaluate", "predict", "export_saved_model", "model_dir", "params", "eval_dir"]
)
def test_public_members_cannot_be_overridden(name: str) -> None:
    kind = type("Changed", (tf.estimator.Estimator,), {name: lambda self: None})
    with pytest.raises(ValueError, match=f"cannot override members of Estimator.*{name}"):
        kind(models.linear)


def test_new_and_private_members_are_allowed_in_a_subclass() -> None:
    kind = type("Extended", (tf.estimator.Estimator,), {"more": lambda self: 3, "_private": 1})
    assert kind(models.linear).more() == 3


def test_a_script_can_disable_the_override_check() -> None:
    kind = type("Changed", (cerebras_tensorflow.CerebrasEstimator,), {"train": lambda self: 3})
    kind._assert_members_are_not_overridden = lambda self: None  # type: ignore[attr-defined]
    assert kind(models.linear).train() == 3


def test_a_cerebras_estimator_is_an_estimator() -> None:
    assert isinstance(cerebras_tensorflow.CerebrasEstimator(models.linear), tf.estimator.Estimator)
    assert not isinstance(3, tf.estimator.Estimator)


# training


@pytest.mark.parametrize("name", ["steps", "max_steps"])
@pytest.mark.parametrize("value", [0, -1])
def test_steps_must_be_positive(fresh: Any, name: str, value: int) -> None:
    with pytest.raises(ValueError, match=f"Must specify {name} > 0, given: {value}"):
        fresh.train(models.repeated, **{name: value})


def test_steps_and_max_steps_exclude_each_other(fresh: Any) -> None:
    with pytest.raises(ValueError, match="Can not provide both steps and max_steps"):
        fresh.train(models.repeated, steps=1, max_steps=1)


def test_train_returns_the_estimator(fresh: Any) -> None:
    assert fresh.train(models.repeated, steps=1) is fresh


def test_steps_are_relative_and_max_steps_absolute(fresh: Any) -> None:
    fresh.train(models.repeated, steps=2)
    fresh.train(models.repeated, steps=2)
    assert step_of(fresh) == 4
    fresh.train(models.repeated, max_steps=5)
    assert step_of(fresh) == 5
    fresh.train(models.repeated, max_steps=5)
    assert step_of(fresh) == 5


def test_training_without_steps_ends_with_the_input(fresh: Any) -> None:
    assert step_of(fresh.train(models.once)) == 4


def test_a_step_that_uses_nothing_of_its_input_goes_on_after_the_end_of_the_input(tmp_path: Path) -> None:
    def counter(features: Any, labels: Any, mode: str) -> Any:
        step = V1.get_global_step()
        return tf.estimator.EstimatorSpec(mode, loss=tf.constant(1.0), train_op=tf.compat.v1.assign_add(step, 1))

    estimator = tf.estimator.Estimator(counter, str(tmp_path / "model"))
    assert step_of(estimator.train(models.once, steps=9)) == 9


def test_training_reduces_the_loss(trained: Any) -> None:
    assert trained.evaluate(models.once)["loss"] < 1.0


def test_the_seed_decides_the_weights(tmp_path: Path) -> None:
    def random_model(features: Any, labels: Any, mode: str) -> Any:
        value = tf.compat.v1.get_variable("w", [4], initializer=tf.compat.v1.random_normal_initializer())
        loss = tf.reduce_sum(value)
        step = V1.get_global_step()
        return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=tf.compat.v1.assign_add(step, 1))

    values = []
    for number, seed in enumerate((1, 1, 2)):
        config = tf.estimator.RunConfig(tf_random_seed=seed)
        estimator = tf.estimator.Estimator(random_model, str(tmp_path / str(number)), config)
        values.append(estimator.train(models.repeated, steps=1).get_variable_value("w"))
    assert (values[0] == values[1]).all()
    assert (values[0] != values[2]).any()


@pytest.mark.parametrize("hooks", [[1], ["hook"], [object]], ids=["int", "str", "class"])
@pytest.mark.parametrize("method", ["train", "evaluate"])
def test_hooks_of_another_type_are_refused(fresh: Any, hooks: list[Any], method: str) -> None:
    with pytest.raises(TypeError, match="Hooks must be a SessionRunHook"):
        getattr(fresh, method)(models.once, hooks=hooks, steps=1)


def test_a_hook_gets_its_calls_in_order(fresh: Any) -> None:
    hook = Recorder()
    fresh.train(models.repeated, hooks=[hook], steps=2)
    assert hook.calls == ["begin", "after_create_session", *["before_run", "after_run"] * 2, "end"]


@pytest.mark.parametrize("mode, missing", [("train", "train_op"), ("infer", "predictions")])
def test_a_spec_of_another_mode_without_what_is_needed_is_refused(mode: str, missing: str, trained: Any) -> None:
    def model(features: Any, labels: Any, mode: str, params: Any) -> Any:
        spec = models.linear(features, labels, mode, params)
        return tf.estimator.EstimatorSpec("eval", loss=spec.loss if mode == "train" else tf.constant(1.0))

    estimator = tf.estimator.Estimator(model, trained.model_dir, params={})
    with pytest.raises(TypeError, match=f"mode eval without {missing}"):
        estimator.train(models.repeated, steps=1) if mode == "train" else next(estimator.predict(models.once))


def test_a_variable_is_not_made_twice_without_reuse(tmp_path: Path) -> None:
    def model(features: Any, labels: Any, mode: str, params: Any) -> Any:
        assert tf.compat.v1.get_variable_scope().reuse is False
        models.linear(features, labels, mode, params)
        return models.linear(features, labels, mode, params)

    with pytest.raises(ValueError, match="already exists"):
        tf.estimator.Estimator(model, str(tmp_path), params={}).train(models.repeated, steps=1)


def test_a_run_without_a_step_tells_its_loss_is_none(fresh: Any, caplog: pytest.LogCaptureFixture) -> None:
    class Stop(V1.SessionRunHook):
        def after_create_session(self, session: Any, coord: Any) -> None:
            coord.request_stop()

    with caplog.at_level("INFO"):
        fresh.train(models.repeated, hooks=[Stop()], steps=2)
    assert "Loss for final step: None." in caplog.text


@pytest.mark.parametrize("owner", ["caller", "training_hooks", "training_chief_hooks"])
def test_a_hook_finds_the_checkpoint_of_its_step(owner: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def write_later(writer: AsynchronousWriter, *args: Any) -> None:
        time.sleep(0.2)
        run(writer, *args)

    run = AsynchronousWriter._run
    monkeypatch.setattr(AsynchronousWriter, "_run", write_later)
    found = []

    class Reader(V1.SessionRunHook):
        def after_run(self, run_context: Any, run_values: Any) -> None:
            found.append(tf.train.latest_checkpoint(str(tmp_path)))

    def model(features: Any, labels: Any, mode: str, params: Any) -> Any:
        spec = models.linear(features, labels, mode, params)
        return spec if owner == "caller" else spec._replace(**{owner: [Reader()]})

    config = tf.estimator.RunConfig(save_checkpoints_steps=1)
    hooks = [Reader()] if owner == "caller" else []
    tf.estimator.Estimator(model, str(tmp_path), config, {}).train(models.repeated, hooks=hooks, steps=2)
    assert found == [str(tmp_path / f"model.ckpt-{step}") for step in (1, 2)]


@pytest.mark.parametrize("field", ["training_hooks", "training_chief_hooks"])
def test_hooks_of_the_spec_run(tmp_path: Path, field: str) -> None:
    hook = Recorder()

    def model(features: Any, labels: Any, mode: str, params: Any) -> Any:
        return models.linear(features, labels, mode, params)._replace(**{field: (hook,)})

    tf.estimator.Estimator(model, str(tmp_path), params={}).train(models.repeated, steps=1)
    assert hook.calls.count("after_run") == 1


@pytest.mark.parametrize(
    "make",
    [
        lambda folder: V1.StopAtStepHook(num_steps=2),
        lambda folder: V1.StopAtStepHook(last_step=2),
        lambda folder: V1.LoggingTensorHook(["global_step"], every_n_iter=1),
        lambda folder: V1.StepCounterHook(every_n_steps=1, output_dir=str(folder)),
        lambda folder: V1.GlobalStepWaiterHook(0),
        lambda folder: V1.FinalOpsHook(None),
        lambda folder: V1.FeedFnHook(lambda: {}),
    ],
    ids=["num_steps", "last_step", "logging", "counter", "waiter", "final_ops", "feed"],
)
def test_the_hooks_of_tensorflow_work(fresh: Any, tmp_path: Path, make: Callable[[Path], Any]) -> None:
    fresh.train(models.repeated, hooks=[make(tmp_path)], max_steps=2)
    assert step_of(fresh) == 2


def test_saving_listeners_get_their_calls(tmp_path: Path) -> None:
    config = tf.estimator.RunConfig(save_checkpoints_steps=2)
    listener = Listener()
    estimator = tf.estimator.Estimator(models.linear, str(tmp_path), config, {})
    estimator.train(models.repeated, max_steps=4, saving_listeners=[listener])
    saves = [(kind, step) for step in (0, 2, 4) for kind in ("before_save", "after_save")]
    assert listener.calls == [("begin", None), *saves, ("end", 4)]


def test_a_listener_can_stop_the_run(tmp_path: Path) -> None:
    config = tf.estimator.RunConfig(save_checkpoints_steps=2)
    estimator = tf.estimator.Estimator(models.linear, str(tmp_path), config, {})
    estimator.train(models.repeated, max_steps=100, saving_listeners=[Listener(stop_at=4)])
    assert step_of(estimator) == 4


def test_a_loss_that_is_not_finite_ends_the_run(tmp_path: Path) -> None:
    estimator = tf.estimator.Estimator(models.linear, str(tmp_path), params={"rate": 1e30})
    with pytest.raises(tf.estimator.NanLossDuringTrainingError):
        estimator.train(models.repeated, max_steps=50)


def test_model_fn_sees_mode_params_and_config(tmp_path: Path) -> None:
    seen: dict[str, Any] = {}

    def model(features: Any, labels: Any, mode: str, params: Any, config: Any) -> Any:
        seen.update(mode=mode, params=params, config=config)
        return models.linear(features, labels, mode, params)

    estimator = tf.estimator.Estimator(model, str(tmp_path), params={"rate": 0.2})
    estimator.train(models.repeated, steps=1)
    assert (seen["mode"], seen["params"]["rate"]) == ("train", 0.2)
    assert seen["config"].model_dir == str(tmp_path)


@pytest.mark.parametrize("value", [None, 3, {"loss": 1}], ids=["none", "int", "dict"])
def test_model_fn_must_return_a_spec(tmp_path: Path, value: Any) -> None:
    estimator = tf.estimator.Estimator(lambda features, labels, mode: value, str(tmp_path))
    with pytest.raises(ValueError, match="model_fn should return an EstimatorSpec"):
        estimator.train(models.repeated, steps=1)


def test_labels_need_a_model_fn_that_takes_them(tmp_path: Path) -> None:
    estimator = tf.estimator.Estimator(lambda features, mode: None, str(tmp_path))
    with pytest.raises(ValueError, match="model_fn does not take labels, but input_fn returns labels"):
        estimator.train(models.repeated, steps=1)


# inputs


def _tensors() -> Any:
    return {"x": tf.constant(models.X)}, tf.constant(models.Y)


@pytest.mark.parametrize(
    "input_fn",
    [
        models.repeated,
        _tensors,
        lambda params: models.repeated(),
        lambda mode: models.repeated(),
        lambda config: models.repeated(),
        lambda mode, params, config: models.repeated(),
        lambda params, input_context=None: models.repeated(),
        lambda params=None: models.repeated(),
        lambda **kwargs: models.repeated(),
        lambda: tf.data.Dataset.from_tensor_slices((models.X, models.Y)).batch(8).repeat(),
        lambda: tf.compat.v1.data.make_one_shot_iterator(models.repeated()).get_next(),
    ],
    ids=["dataset", "tensors", "params", "mode", "config", "all", "context", "default", "kwargs", "array", "iterator"],
)
def test_input_fn_may_take_and_return_what_is_documented(fresh: Any, input_fn: Callable[..., Any]) -> None:
    assert step_of(fresh.train(input_fn, steps=2)) == 2


@pytest.mark.parametrize("result", [(1, 2, 3), [1]], ids=["three", "one"])
def test_input_fn_must_return_features_and_labels(fresh: Any, result: Any) -> None:
    with pytest.raises(ValueError, match="input_fn should return"):
        fresh.train(lambda: result, steps=1)


def test_a_functools_partial_is_an_input_fn(fresh: Any) -> None:
    import functools

    fresh.train(functools.partial(lambda params, more: models.repeated(), more=1), steps=1)
    assert step_of(fresh) == 1


# evaluation


@pytest.mark.parametrize("name", ["loss", "mae", "global_step"])
def test_evaluate_returns(trained: Any, name: str) -> None:
    assert name in trained.evaluate(models.once)


def test_metrics_are_in_the_order_of_their_names(trained: Any) -> None:
    assert list(trained.evaluate(models.once)) == ["loss", "mae", "global_step"]


def test_the_loss_is_the_mean_over_batches(trained: Any) -> None:
    weights, bias = trained.get_variable_value("w"), trained.get_variable_value("b")
    errors = (models.X @ weights + bias - models.Y) ** 2
    assert trained.evaluate(models.once)["loss"] == pytest.approx(errors.reshape(4, -1).mean(1).mean(), rel=1e-5)


def test_evaluate_returns_the_global_step_of_the_checkpoint(trained: Any) -> None:
    assert trained.evaluate(models.once)["global_step"] == 20


@pytest.mark.parametrize("steps", [1, 2, 4, 9])
def test_evaluation_ends_after_steps_or_with_the_input(trained: Any, steps: int) -> None:
    hook = Recorder()
    trained.evaluate(models.once, steps=steps, hooks=[hook])
    assert hook.calls.count("after_run") == min(steps, 4)


@pytest.mark.parametrize("steps", [0, -3])
def test_evaluation_steps_must_be_positive(trained: Any, steps: int) -> None:
    with pytest.raises(ValueError, match=f"Must specify steps > 0, given: {steps}"):
        trained.evaluate(models.once, steps=steps)


def test_an_older_checkpoint_can_be_evaluated(trained: Any) -> None:
    result = trained.evaluate(models.once, checkpoint_path=f"{trained.model_dir}/model.ckpt-5")
    assert result["global_step"] == 5
    assert result["loss"] > trained.evaluate(models.once)["loss"]


@pytest.mark.parametrize("name, folder", [(None, "eval"), ("dev", "eval_dev")])
def test_each_evaluation_has_its_own_event_files(trained: Any, name: str | None, folder: str) -> None:
    trained.evaluate(models.once, name=name)
    assert trained.eval_dir(name) == f"{trained.model_dir}/{folder}"
    assert list(Path(trained.eval_dir(name)).glob("events.out.tfevents.*"))


def test_evaluation_without_training_uses_initial_values(fresh: Any) -> None:
    assert fresh.evaluate(models.once)["loss"] == pytest.approx(float((models.Y**2).mean()), rel=1e-5)


@pytest.mark.parametrize("kind", ["tf_keras", "keras"])
def test_metrics_of_both_keras_generations_are_taken(tmp_path: Path, kind: str) -> None:
    keras = pytest.importorskip(kind)

    def model(features: Any, labels: Any, mode: str, params: Any) -> Any:
        spec = models.linear(features, labels, mode, params)
        if mode != tf.estimator.ModeKeys.EVAL:
            return spec
        metric = keras.metrics.MeanSquaredError(name="mse")
        metric.update_state(labels, spec.predictions["p"])
        return spec._replace(eval_metric_ops={"mse": metric})

    estimator = tf.estimator.Estimator(model, str(tmp_path), params={})
    result = estimator.evaluate(models.once)
    assert result["mse"] == pytest.approx(float((models.Y**2).mean()), rel=1e-4)


# prediction


def test_predictions_come_one_sample_at_a_time(trained: Any) -> None:
    samples = list(trained.predict(models.once))
    assert len(samples) == 32
    assert samples[0]["p"].shape == (1,)
    weights, bias = trained.get_variable_value("w"), trained.get_variable_value("b")
    np.testing.assert_allclose([sample["p"] for sample in samples], models.X @ weights + bias, rtol=1e-5, atol=1e-6)


def test_predictions_may_come_in_batches(trained: Any) -> None:
    batches = list(trained.predict(models.once, yield_single_examples=False))
    assert [len(batch["p"]) for batch in batches] == [8, 8, 8, 8]


@pytest.mark.parametrize("keys", [["p"], ["twice"], ["p", "twice"]], ids=str)
def test_predict_keys_choose(trained: Any, keys: list[str]) -> None:
    assert sorted(next(iter(trained.predict(models.once, predict_keys=keys)))) == sorted(keys)


def test_unknown_predict_keys_are_refused(trained: Any) -> None:
    with pytest.raises(ValueError, match="Expected to run at least one output"):
        list(trained.predict(models.once, predict_keys=["nothing"]))


def test_predict_is_lazy(trained: Any) -> None:
    assert len(list(itertools.islice(trained.predict(models.repeated), 40))) == 40


def test_predict_takes_hooks(trained: Any) -> None:
    hook = Recorder()
    list(trained.predict(models.once, hooks=[hook]))
    assert hook.calls.count("after_run") == 4


def test_predictions_may_be_a_single_tensor(tmp_path: Path) -> None:
    def model(features: Any, labels: Any, mode: str) -> Any:
        tf.compat.v1.get_variable("v", [])
        return tf.estimator.EstimatorSpec(mode, predictions=features["x"])

    estimator = tf.estimator.Estimator(model, str(tmp_path))
    assert next(iter(estimator.predict(models.once))).shape == (3,)
    with pytest.raises(ValueError, match="predict_keys argument is not valid in case of non-dict predictions"):
        list(estimator.predict(models.once, predict_keys=["p"]))


def test_only_cerebras_estimator_takes_num_samples(trained: Any) -> None:
    estimator = cerebras_tensorflow.CerebrasEstimator(models.linear, trained.model_dir, params={})
    assert len(list(estimator.predict(models.once, num_samples=5))) == 5
    with pytest.raises(TypeError):
        trained.predict(models.once, num_samples=5)


# checkpoints


def test_checkpoints_are_named_as_tensorflow_names_them(trained: Any) -> None:
    state = tf.train.get_checkpoint_state(trained.model_dir)
    assert [path.rsplit("/")[-1] for path in state.all_model_checkpoint_paths] == [
        f"model.ckpt-{step}" for step in (0, 5, 10, 15, 20)
    ]
    assert trained.latest_checkpoint() == tf.train.latest_checkpoint(trained.model_dir)


@pytest.mark.parametrize("name", ["w", "b", "global_step"])
def test_variable_values_equal_those_of_tensorflows_reader(trained: Any, name: str) -> None:
    assert name in trained.get_variable_names()
    reader = tf.train.load_checkpoint(trained.latest_checkpoint())
    expected, value = reader.get_tensor(name), trained.get_variable_value(name)
    assert np.array_equal(expected, value)
    assert type(value) is type(expected)


@pytest.mark.parametrize("method, arguments", [("get_variable_names", ()), ("get_variable_value", ("w",))])
def test_variables_need_a_checkpoint(fresh: Any, method: str, arguments: tuple[Any, ...]) -> None:
    with pytest.raises(ValueError, match="Could not find trained model in model_dir"):
        getattr(fresh, method)(*arguments)


def test_latest_checkpoint_of_an_untrained_model_is_none(fresh: Any) -> None:
    assert fresh.latest_checkpoint() is None


@pytest.mark.parametrize("keep, left", [(1, 1), (2, 2), (0, 5), (None, 5)])
def test_keep_checkpoint_max(tmp_path: Path, keep: int | None, left: int) -> None:
    config = tf.estimator.RunConfig(save_checkpoints_steps=1, keep_checkpoint_max=keep)
    tf.estimator.Estimator(models.linear, str(tmp_path), config, {}).train(models.repeated, max_steps=4)
    assert len(list(tmp_path.glob("model.ckpt-*.index"))) == left


# warm start


def warm(tmp_path: Path, settings: Any, name: str = "warm") -> Any:
    return tf.estimator.Estimator(models.linear, str(tmp_path / name), params={"rate": 0.0}, warm_start_from=settings)


def test_a_path_warm_starts_everything(trained: Any, tmp_path: Path) -> None:
    estimator = warm(tmp_path, trained.latest_checkpoint()).train(models.repeated, steps=1)
    assert np.array_equal(estimator.get_variable_value("w"), trained.get_variable_value("w"))
    assert step_of(estimator) == 1


@pytest.mark.parametrize("pattern, warm_names", [(".*", "wb"), ("w", "w"), ("b", "b"), (["w", "b"], "wb"), (None, "")])
def test_warm_start_settings_choose_variables(trained: Any, tmp_path: Path, pattern: Any, warm_names: str) -> None:
    settings = tf.estimator.WarmStartSettings(trained.latest_checkpoint(), vars_to_warm_start=pattern)
    estimator = warm(tmp_path, settings).train(models.repeated, steps=1)
    for name in "wb":
        same = np.array_equal(estimator.get_variable_value(name), trained.get_variable_value(name))
        assert same == (name in warm_names)


def test_warm_start_maps_names(trained: Any, tmp_path: Path) -> None:
    def renamed(features: Any, labels: Any, mode: str, params: Any) -> Any:
        with tf.compat.v1.variable_scope("new"):
            return models.linear(features, labels, mode, params)

    settings = tf.estimator.WarmStartSettings(
        trained.latest_checkpoint(), var_name_to_prev_var_name={"new/w": "w", "new/b": "b"}
    )
    estimator = tf.estimator.Estimator(renamed, str(tmp_path), params={"rate": 0.0}, warm_start_from=settings)
    estimator.train(models.repeated, steps=1)
    assert np.array_equal(estimator.get_variable_value("new/w"), trained.get_variable_value("w"))


def extended(features: Any, labels: Any, mode: str, params: Any) -> Any:
    """The model with a variable that its checkpoints lack."""
    tf.compat.v1.get_variable("head", [2], initializer=tf.compat.v1.ones_initializer())
    return models.linear(features, labels, mode, params)


def widened(features: Any, labels: Any, mode: str, params: Any) -> Any:
    """The model with a variable of another shape than in its checkpoints."""
    with tf.compat.v1.variable_scope("wide"):
        spec = models.linear(features, labels, mode, params)
    tf.compat.v1.get_variable("w", [3, 2], initializer=tf.compat.v1.ones_initializer())
    return spec


def started(model: Any, tmp_path: Path, settings: Any) -> Any:
    estimator = tf.estimator.Estimator(model, str(tmp_path / "it"), params={"rate": 0.0}, warm_start_from=settings)
    return estimator.train(models.repeated, steps=1)


def test_a_path_without_a_variable_is_refused(trained: Any, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"Tensor head is not found in .*model.ckpt-20 checkpoint \{'"):
        started(extended, tmp_path, trained.latest_checkpoint())


def test_a_path_with_another_shape_is_refused(trained: Any, tmp_path: Path) -> None:
    settings = tf.estimator.WarmStartSettings(trained.latest_checkpoint(), vars_to_warm_start="w:0")
    text = (
        r"Shape of variable w:0 \(\(3, 2\)\) doesn't match with shape of tensor w \(\[3, 1\]\) from checkpoint reader."
    )
    with pytest.raises(ValueError, match=text):
        started(widened, tmp_path, settings)


def test_a_list_of_patterns_takes_the_global_step_too(trained: Any, tmp_path: Path) -> None:
    settings = tf.estimator.WarmStartSettings(trained.latest_checkpoint(), vars_to_warm_start=[".*"])
    assert step_of(started(models.linear, tmp_path, settings)) == 21


def test_a_pattern_takes_trainable_variables_only(tmp_path: Path) -> None:
    def counting(features: Any, labels: Any, mode: str, params: Any) -> Any:
        count = tf.compat.v1.get_variable("count", [], trainable=False, initializer=tf.compat.v1.zeros_initializer())
        spec = models.linear(features, labels, mode, params)
        with tf.control_dependencies([count.assign_add(1.0)]):
            return spec._replace(train_op=tf.group(spec.train_op, tf.no_op()))

    first = tf.estimator.Estimator(counting, str(tmp_path / "first"), params={"rate": 0.1})
    first.train(models.repeated, steps=5)
    again = started(counting, tmp_path, first.latest_checkpoint())
    assert first.get_variable_value("count") == 5.0
    assert again.get_variable_value("count") == 1.0


def test_a_mapped_name_must_be_a_variable(trained: Any, tmp_path: Path) -> None:
    settings = tf.estimator.WarmStartSettings(trained.latest_checkpoint(), var_name_to_prev_var_name={"q": "w"})
    with pytest.raises(
        ValueError, match=r"in var_name_to_prev_var_name that were not used: \{'q'\}.  Perhaps you missp"
    ):
        started(models.linear, tmp_path, settings)


@pytest.mark.parametrize(
    "pattern, text", [([3], "it must be all `Variable` or all `str`"), (3, "must be a `list` or `str`.  Given type is")]
)
def test_vars_to_warm_start_must_be_strings_or_variables(trained: Any, tmp_path: Path, pattern: Any, text: str) -> None:
    settings = tf.estimator.WarmStartSettings(trained.latest_checkpoint(), vars_to_warm_start=pattern)
    with pytest.raises(ValueError, match=text):
        started(models.linear, tmp_path, settings)


def test_a_vocabulary_maps_the_rows(tmp_path: Path) -> None:
    for name, words in (("old", "a b c"), ("new", "c d a")):
        (tmp_path / name).write_text("\n".join(words.split()) + "\n")

    def embedding(scale: float) -> Any:
        def model_fn(features: Any, labels: Any, mode: str) -> Any:
            values = tf.constant([[1.0], [2.0], [3.0]]) * scale
            tf.compat.v1.get_variable("table", initializer=values)
            step = tf.compat.v1.train.get_global_step()
            return tf.estimator.EstimatorSpec(mode, loss=tf.constant(0.0), train_op=step.assign_add(1))

        return model_fn

    first = tf.estimator.Estimator(embedding(1.0), str(tmp_path / "first")).train(models.repeated, steps=1)
    vocabulary = tf.estimator.VocabInfo(
        new_vocab=str(tmp_path / "new"),
        new_vocab_size=3,
        num_oov_buckets=0,
        old_vocab=str(tmp_path / "old"),
        backup_initializer=tf.compat.v1.zeros_initializer(),
    )
    settings = tf.estimator.WarmStartSettings(
        first.latest_checkpoint(), vars_to_warm_start=".*", var_name_to_vocab_info={"table": vocabulary}
    )
    second = tf.estimator.Estimator(embedding(10.0), str(tmp_path / "second"), warm_start_from=settings)
    second.train(models.repeated, steps=1)
    assert second.get_variable_value("table").tolist() == [[3.0], [0.0], [1.0]]


def test_warm_start_does_not_touch_a_run_that_resumes(trained: Any, tmp_path: Path) -> None:
    first = tf.estimator.Estimator(models.linear, str(tmp_path / "warm"), params={"rate": 0.0})
    first.train(models.repeated, steps=1)
    again = warm(tmp_path, trained.latest_checkpoint()).train(models.repeated, steps=1)
    assert not np.any(again.get_variable_value("w"))


@pytest.mark.parametrize("value", [3, ["path"], {"a": 1}], ids=["int", "list", "dict"])
def test_warm_start_from_must_be_a_path_or_settings(value: Any) -> None:
    with pytest.raises(ValueError, match="warm_start_from must be a string or a WarmStartSettings, instead got"):
        tf.estimator.Estimator(models.linear, warm_start_from=value)


def test_warm_start_settings_need_a_checkpoint() -> None:
    with pytest.raises(ValueError, match="`ckpt_to_initialize_from` MUST be set"):
        tf.estimator.WarmStartSettings("")


# summaries


def tags(folder: str) -> set[str]:
    names = set()
    for path in Path(folder).glob("events.out.tfevents.*"):
        for event in V1.summary_iterator(str(path)) if hasattr(V1, "summary_iterator") else ():
            names.update(value.tag for value in event.summary.value)
    return names


def with_summary(features: Any, labels: Any, mode: str, params: Any) -> Any:
    spec = models.linear(features, labels, mode, params)
    tf.compat.v1.summary.scalar("mine", spec.loss)
    return spec


def test_summaries_reach_event_files(tmp_path: Path) -> None:
    config = tf.estimator.RunConfig(save_summary_steps=1)
    tf.estimator.Estimator(with_summary, str(tmp_path), config, {}).train(models.repeated, steps=2)
    assert {"mine", "loss"} <= tags(str(tmp_path))


@pytest.mark.parametrize("is_enabled", [True, False])
def test_the_summary_contexts_enable_and_disable_model_summaries(tmp_path: Path, is_enabled: bool) -> None:
    from cerebras_tensorflow.estimator import summaries

    config = tf.estimator.RunConfig(save_summary_steps=1)
    with summaries.cs1_enable_summaries() if is_enabled else summaries.cs1_disable_summaries():
        tf.estimator.Estimator(with_summary, str(tmp_path), config, {}).train(models.repeated, steps=2)
    assert ("mine" in tags(str(tmp_path))) == is_enabled
    assert "loss" in tags(str(tmp_path))


def test_without_an_interval_nothing_is_saved(tmp_path: Path) -> None:
    config = tf.estimator.RunConfig(save_checkpoints_steps=None, save_checkpoints_secs=None)
    estimator = tf.estimator.Estimator(models.linear, str(tmp_path), config, {}).train(models.repeated, max_steps=2)
    assert estimator.latest_checkpoint() is None
    with pytest.raises(ValueError, match="There should be a CheckpointSaverHook to use saving_listeners"):
        estimator.train(models.repeated, max_steps=4, saving_listeners=[Listener()])


def test_a_checkpoint_has_its_graph_beside_it(trained: Any) -> None:
    path = trained.latest_checkpoint()
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        saver = tf.compat.v1.train.import_meta_graph(path + ".meta")
        saver.restore(session, path)
        values = {variable.op.name: session.run(variable) for variable in tf.compat.v1.global_variables()}
        operations = {operation.name for operation in tf.compat.v1.get_default_graph().get_operations()}
    assert values["global_step"] == 20
    assert np.array_equal(values["w"], trained.get_variable_value("w"))
    assert {"MatMul", "save/restore_all", "GradientDescent"} <= operations
    folder = Path(trained.model_dir)
    assert (folder / "graph.pbtxt").read_text(encoding="utf-8").startswith("node {")
    assert len(list(folder.glob("*.meta"))) == len(list(folder.glob("*.index")))


def test_predict_gives_the_model_no_labels(tmp_path: Path) -> None:
    given: list[Any] = []

    def model_fn(features: Any, labels: Any, mode: str) -> Any:
        given.append(labels)
        return models.linear(features, labels, mode, None)

    estimator = tf.estimator.Estimator(model_fn, str(tmp_path)).train(models.repeated, max_steps=1)
    next(estimator.predict(models.repeated))
    assert given[0] is not None
    assert given[-1] is None


def test_an_evaluation_initializes_its_own_variables_beside_a_local_init_op(tmp_path: Path) -> None:
    def model_fn(features: Any, labels: Any, mode: str) -> Any:
        if mode != tf.estimator.ModeKeys.EVAL:
            return models.linear(features, labels, mode, None)
        scaffold = V1.Scaffold(local_init_op=tf.compat.v1.local_variables_initializer())
        return models.linear(features, labels, mode, None)._replace(scaffold=scaffold)

    estimator = tf.estimator.Estimator(model_fn, str(tmp_path)).train(models.repeated, max_steps=1)
    assert np.isfinite(estimator.evaluate(models.once, steps=1)["loss"])


def test_the_device_function_of_the_config_places_the_training_graph_only(tmp_path: Path) -> None:
    placed: dict[str, str] = {}

    def model_fn(features: Any, labels: Any, mode: str) -> Any:
        placed[mode] = tf.constant(1.0).device
        return models.linear(features, labels, mode, None)

    config = tf.estimator.RunConfig(device_fn=lambda op: "/device:CPU:0")
    estimator = tf.estimator.Estimator(model_fn, str(tmp_path), config).train(models.repeated, max_steps=1)
    estimator.evaluate(models.once, steps=1)
    assert placed == {"train": "/device:CPU:0", "eval": ""}


def test_programs_may_call_the_private_methods_that_build_a_graph(trained: Any) -> None:
    mode = tf.estimator.ModeKeys.EVAL
    with tf.Graph().as_default():
        V1.create_global_step()
        features, labels, hooks = trained._get_features_and_labels_from_input_fn(models.once, mode)
        spec = trained._call_model_fn(features, labels, mode, trained.config)
        assert spec.mode == mode and len(hooks) == 1
        assert trained._get_features_from_input_fn(models.once, mode)[0].keys() == features.keys()


def test_a_receiver_without_labels_gives_its_features() -> None:
    from tensorflow_estimator.python.estimator.export.export import UnsupervisedInputReceiver

    with tf.Graph().as_default():
        text = tf.compat.v1.placeholder(tf.string, name="text")
        receiver = UnsupervisedInputReceiver(text, text)
        assert receiver.features == {"feature": text} and receiver.receiver_tensors == {"input": text}
        with pytest.raises(ValueError, match="receiver_tensor input must be a Tensor"):
            UnsupervisedInputReceiver(text, "no tensor")
