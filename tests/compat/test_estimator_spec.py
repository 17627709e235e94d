"""EstimatorSpec and CSEstimatorSpec: what they accept, refuse and say, as tf.estimator 2.15 documents it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import tensorflow as tf

import cerebras_tensorflow
from cerebras_tensorflow.estimator.host_call import host_call_to_eval_metric_ops, validate_host_call

Spec = tf.estimator.EstimatorSpec
MODES = tf.estimator.ModeKeys
FIELDS = (
    "mode", "predictions", "loss", "train_op", "eval_metric_ops", "export_outputs", "training_chief_hooks",
    "training_hooks", "scaffold", "evaluation_hooks", "prediction_hooks",
)  # fmt: skip
HOOK_FIELDS = ("training_chief_hooks", "training_hooks", "evaluation_hooks", "prediction_hooks")


@pytest.fixture(autouse=True)
def graph() -> Iterator[None]:
    with tf.Graph().as_default():
        yield


def loss() -> Any:
    return tf.constant(1.0)


def complete(mode: str, **changes: Any) -> Any:
    """A spec with all that the mode needs."""
    needed: dict[str, Any] = {"predictions": {"p": tf.constant([1.0])}, "loss": loss(), "train_op": tf.no_op()}
    return Spec(mode, **{**needed, **changes})


@pytest.mark.parametrize("number, name", list(enumerate(FIELDS)))
def test_fields_are_in_the_documented_order(number: int, name: str) -> None:
    assert Spec._fields[number] == name
    assert inspect.getfullargspec(Spec.__new__).args[number + 1] == name


@pytest.mark.parametrize("name", FIELDS[1:])
def test_each_field_is_readable_and_optional_in_some_mode(name: str) -> None:
    parameter = inspect.signature(Spec.__new__).parameters[name]
    assert parameter.default is None
    assert hasattr(complete(MODES.TRAIN), name)


@pytest.mark.parametrize("mode, value", [("TRAIN", "train"), ("EVAL", "eval"), ("PREDICT", "infer")])
def test_mode_keys(mode: str, value: str) -> None:
    assert getattr(MODES, mode) == value
    assert complete(value).mode == value


@pytest.mark.parametrize(
    "mode, field, text",
    [
        ("train", "train_op", "Missing train_op"),
        ("train", "loss", "Missing loss"),
        ("eval", "loss", "Missing loss"),
        ("infer", "predictions", "Missing predictions"),
    ],
)
def test_a_spec_without_a_field_that_its_mode_needs_is_refused(mode: str, field: str, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        complete(mode, **{field: None})


@pytest.mark.parametrize(
    "mode, field",
    [("eval", "train_op"), ("infer", "train_op"), ("infer", "loss"), ("train", "predictions"), ("eval", "predictions")],
)
def test_fields_that_a_mode_does_not_need_are_optional(mode: str, field: str) -> None:
    assert getattr(complete(mode, **{field: None}), field) in (None, {})


@pytest.mark.parametrize("mode", ["TRAIN", "test", "", None, 3, "predict"])
def test_a_spec_accepts_an_unknown_mode(mode: Any) -> None:
    assert complete(mode).mode == mode


@pytest.mark.parametrize("shape", [[], [1], [1, 1]])
def test_a_loss_of_one_element_becomes_a_scalar(shape: list[int]) -> None:
    assert complete("train", loss=tf.ones(shape)).loss.shape.as_list() == []


@pytest.mark.parametrize("shape", [[2], [1, 2], [0], [3, 3]])
@pytest.mark.parametrize("mode", ["train", "eval"])
def test_a_loss_of_more_elements_is_refused(shape: list[int], mode: str) -> None:
    with pytest.raises(ValueError, match="Loss must be scalar"):
        complete(mode, loss=tf.ones(shape))


def test_a_loss_of_unknown_shape_is_taken() -> None:
    placeholder = tf.compat.v1.placeholder(tf.float32, None)
    assert complete("train", loss=placeholder).loss is not None


@pytest.mark.parametrize(
    "make",
    [
        lambda: tf.no_op(),
        lambda: tf.constant(1),
        lambda: tf.group(tf.no_op(), tf.no_op()),
        lambda: tf.compat.v1.assign_add(tf.compat.v1.get_variable("v", [], use_resource=True), 1.0),
    ],
    ids=["op", "tensor", "group", "assign"],
)
def test_train_op_may_be_an_op_or_a_tensor(make: Callable[[], Any]) -> None:
    assert complete("train", train_op=make()).train_op is not None


@pytest.mark.parametrize("value", [1, "op", [1], {}], ids=["int", "str", "list", "dict"])
def test_train_op_must_be_an_op_or_a_tensor(value: Any) -> None:
    with pytest.raises(TypeError, match="train_op must be Operation or Tensor"):
        complete("train", train_op=value)


@pytest.mark.parametrize(
    "make",
    [
        lambda: tf.constant([1.0]),
        lambda: {"a": tf.constant([1.0])},
        lambda: {"a": tf.constant([1]), "b": tf.constant(["x"])},
    ],
    ids=["tensor", "dict", "two"],
)
def test_predictions_may_be_tensors_and_dicts_of_them(make: Callable[[], Any]) -> None:
    assert complete("infer", predictions=make()).predictions is not None


def test_sparse_predictions_are_taken_and_have_no_default_export_output() -> None:
    sparse = {"s": tf.SparseTensor([[0]], [1.0], [1])}
    assert complete("infer", predictions=sparse).export_outputs is None


def test_a_metric_part_of_another_type_is_refused_with_the_types_that_callers_catch() -> None:
    for kind in (TypeError, AttributeError):
        with pytest.raises(kind, match=r"eval_metric_ops\[m\] update must be Operation or Tensor, given: 1.0"):
            complete("eval", eval_metric_ops={"m": (loss(), 1.0)})


@pytest.mark.parametrize("value", [{"a": 1}, {"a": "x"}, {"a": [1.0]}, 3.0, {"a": None}])
def test_predictions_must_be_tensors(value: Any) -> None:
    with pytest.raises(TypeError, match="must be Tensor"):
        complete("infer", predictions=value)


def test_predictions_default_to_an_empty_dict() -> None:
    assert complete("train", predictions=None).predictions == {}


def test_eval_metric_ops_default_to_an_empty_dict() -> None:
    assert complete("eval").eval_metric_ops == {}


@pytest.mark.parametrize("value", [[1], 3, "accuracy", (1, 2)])
def test_eval_metric_ops_must_be_a_dict(value: Any) -> None:
    with pytest.raises(TypeError, match="eval_metric_ops must be a dict"):
        complete("eval", eval_metric_ops=value)


@pytest.mark.parametrize("value", [1, "x", (1,), (1, 2, 3), None], ids=str)
def test_a_metric_must_be_a_pair(value: Any) -> None:
    with pytest.raises(TypeError, match=r"Values of eval_metric_ops must be \(metric_value, update_op\)"):
        complete("eval", eval_metric_ops={"m": value})


@pytest.mark.parametrize(
    "name", ["accuracy", "mean_absolute_error", "mean_squared_error", "precision", "recall", "auc"]
)
def test_every_streaming_metric_is_taken(name: str) -> None:
    metric = getattr(tf.compat.v1.metrics, name)(tf.constant([1.0]), tf.constant([1.0]))
    assert "m" in complete("eval", eval_metric_ops={"m": metric}).eval_metric_ops


def test_a_metric_of_tf_keras_becomes_a_value_and_an_update() -> None:
    tf_keras = pytest.importorskip("tf_keras")
    metric = tf_keras.metrics.Mean()
    metric.update_state(tf.constant([1.0, 4.0]))
    spec = complete("eval", eval_metric_ops={"m": metric})
    value, update = spec.eval_metric_ops["m"]
    assert spec._replace(predictions={}).eval_metric_ops["m"] == (value, update)
    assert len(tf.compat.v1.get_collection("metric_variables")) == 2
    with tf.compat.v1.Session() as session:
        session.run(tf.compat.v1.local_variables_initializer())
        session.run(update)
        assert session.run(value) == 2.5


@pytest.mark.parametrize("field", HOOK_FIELDS)
def test_hooks_are_kept_as_a_tuple(field: str) -> None:
    hook = tf.compat.v1.train.SessionRunHook()
    assert getattr(complete("train", **{field: [hook]}), field) == (hook,)
    assert getattr(complete("train"), field) == ()


@pytest.mark.parametrize("field", HOOK_FIELDS)
@pytest.mark.parametrize("value", [[1], ["hook"], [object()], [None]], ids=["int", "str", "object", "none"])
def test_hooks_of_another_type_are_refused(field: str, value: Any) -> None:
    with pytest.raises(TypeError, match="All hooks must be SessionRunHook instances"):
        complete("train", **{field: value})


def test_a_scaffold_is_made_if_none_is_given() -> None:
    assert isinstance(complete("train").scaffold, tf.compat.v1.train.Scaffold)


def test_a_scaffold_is_kept() -> None:
    scaffold = tf.compat.v1.train.Scaffold()
    assert complete("train", scaffold=scaffold).scaffold is scaffold


@pytest.mark.parametrize("value", [1, "s", object()], ids=["int", "str", "object"])
def test_scaffold_must_be_a_scaffold(value: Any) -> None:
    with pytest.raises(TypeError, match=r"scaffold must be tf\.train\.Scaffold"):
        complete("train", scaffold=value)


@pytest.mark.parametrize("value", [[1], "x", 3], ids=["list", "str", "int"])
def test_export_outputs_must_be_a_dict(value: Any) -> None:
    with pytest.raises(TypeError, match="must be dict"):
        complete("infer", export_outputs=value)


@pytest.mark.parametrize("value", [1, "x", None], ids=["int", "str", "none"])
def test_export_outputs_of_another_type_are_refused(value: Any) -> None:
    with pytest.raises(TypeError, match="ExportOutput"):
        complete("infer", export_outputs={"serving_default": value})


def test_several_export_outputs_need_a_default() -> None:
    outputs = {name: tf.estimator.export.PredictOutput({"p": tf.constant([1.0])}) for name in ("a", "b")}
    with pytest.raises(ValueError, match="default"):
        complete("infer", export_outputs=outputs)


def test_one_export_output_becomes_the_default_as_well() -> None:
    output = tf.estimator.export.PredictOutput({"p": tf.constant([1.0])})
    assert complete("infer", export_outputs={"a": output}).export_outputs["serving_default"] is output


@pytest.mark.parametrize("field", ["loss", "train_op"])
def test_a_spec_is_immutable(field: str) -> None:
    with pytest.raises(AttributeError):
        setattr(complete("train"), field, None)


def test_replace_returns_another_spec() -> None:
    spec = complete("train")
    other = spec._replace(mode="train", loss=tf.constant(2.0))
    assert other.loss is not spec.loss
    assert other.train_op is spec.train_op


def test_the_mode_of_a_spec_cannot_be_changed() -> None:
    with pytest.raises(ValueError, match="mode of EstimatorSpec cannot be changed"):
        complete("train")._replace(mode="eval")


def test_a_subclass_may_add_attributes() -> None:
    class Extended(Spec):  # type: ignore[misc, valid-type]
        def __new__(cls, mode: str, extra: int, **kwargs: Any) -> Any:
            spec = super().__new__(cls, mode, **kwargs)
            spec.extra = extra
            return spec

    assert Extended("infer", 3, predictions=tf.constant([1.0])).extra == 3


# CSEstimatorSpec and host_call


def metric_fn(values: Any) -> dict[str, Any]:
    return {"mean": tf.compat.v1.metrics.mean(values)}


def test_the_class_has_the_name_that_scripts_compare() -> None:
    assert cerebras_tensorflow.CSEstimatorSpec.__name__ == "CSEstimatorSpec"
    assert cerebras_tensorflow.CSRunConfig.__name__ == "CSRunConfig"
    assert cerebras_tensorflow.CerebrasEstimator.__name__ == "CerebrasEstimator"
    assert tf.estimator.Estimator.__name__ == "EstimatorV2"
    assert tf.compat.v1.estimator.Estimator.__name__ == "Estimator"


@pytest.mark.parametrize("name", FIELDS)
def test_a_cs_spec_has_all_fields_of_the_spec(name: str) -> None:
    spec = cerebras_tensorflow.CSEstimatorSpec("eval", loss=loss(), host_call=(metric_fn, [tf.constant([1.0])]))
    assert hasattr(spec, name)


def test_a_cs_spec_keeps_its_host_call() -> None:
    call = (metric_fn, [tf.constant([1.0])])
    assert cerebras_tensorflow.CSEstimatorSpec("eval", loss=loss(), host_call=call).host_call is call
    assert cerebras_tensorflow.CSEstimatorSpec("eval", loss=loss()).host_call is None


def test_host_call_and_eval_metric_ops_exclude_each_other() -> None:
    with pytest.raises(ValueError, match="Please specify only one of `host_call` or `eval_metric_ops`, not both"):
        cerebras_tensorflow.CSEstimatorSpec(
            "eval",
            loss=loss(),
            host_call=(metric_fn, [tf.constant([1.0])]),
            eval_metric_ops=metric_fn(tf.constant([1.0])),
        )


@pytest.mark.parametrize(
    "call, text",
    [
        (3, "must be an iterable with length 2 or 3. Instead received 3"),
        ((metric_fn,), "must be an iterable with length 2 or 3"),
        ((metric_fn, [], [], []), "must be an iterable with length 2 or 3"),
        ((3, []), "Expected first item of `host_call` to be a callable. Instead received <class 'int'>"),
        ((metric_fn, 3), "Expected second item of `host_call` to be an iterable. Instead received <class 'int'>"),
        ((metric_fn, [], 3), "Expected third item of `host_call` to be an iterable. Instead received <class 'int'>"),
    ],
    ids=["no iterable", "one part", "four parts", "no callable", "no tensors", "third"],
)
def test_a_malformed_host_call_is_refused_with_the_texts_of_1_7(call: Any, text: str) -> None:
    with pytest.raises(ValueError, match=".*" + text.replace("(", r"\(")):
        validate_host_call(call)


@pytest.mark.parametrize("kind", [tuple, list])
def test_a_host_call_may_return_a_sequence(kind: Callable[[Any], Any]) -> None:
    def fn(values: Any) -> Any:
        return kind([tf.compat.v1.metrics.mean(values), "no metric", tf.compat.v1.metrics.mean(values)])

    metrics = host_call_to_eval_metric_ops((fn, [tf.constant([1.0])]))
    assert sorted(metrics) == ["elem_0", "elem_2"]


@pytest.mark.parametrize("value", [3, "x", None], ids=["int", "str", "none"])
def test_a_host_call_must_return_metrics(value: Any) -> None:
    if isinstance(value, str):
        value = 1.5
    with pytest.raises(ValueError, match="Invalid `eval_metric_ops` of type"):
        host_call_to_eval_metric_ops((lambda values: value, [tf.constant([1.0])]))


def test_a_host_call_may_return_nothing() -> None:
    assert host_call_to_eval_metric_ops((lambda values: {}, [tf.constant([1.0])])) == {}
