"""model_to_estimator: models of Keras 2 train, evaluate, predict and export as Estimators, from their own weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tf_keras

from cerebras_tensorflow.estimator.keras_model import KerasModelToCerebrasEstimator, model_to_estimator

# The wheel's code uses Keras 2 as TensorFlow 2.15 had it.
pytestmark = pytest.mark.filterwarnings(
    "ignore:`tf.keras.backend.set_learning_phase` is deprecated", "ignore:`Model.state_updates` will be removed"
)
X = np.random.RandomState(0).randn(32, 3).astype(np.float32)
Y = (X[:, :1] > 0).astype(np.float32)


def model(optimizer: Any = "adam") -> Any:
    inputs = tf_keras.Input([3], name="x")
    hidden = tf_keras.layers.Dense(8, "relu", kernel_regularizer=tf_keras.regularizers.L2(0.01))(inputs)
    made = tf_keras.Model(inputs, tf_keras.layers.Dense(1, "sigmoid", name="p")(hidden))
    made.compile(optimizer, loss="binary_crossentropy", metrics=["accuracy", tf_keras.metrics.AUC(name="auc")])
    return made


def rows(repeats: bool = True) -> Any:
    def input_fn() -> Any:
        data = tf.data.Dataset.from_tensor_slices(({"x": X}, Y)).batch(8)
        return data.repeat() if repeats else data

    return input_fn


def test_evaluation_and_predictions_equal_those_of_keras(tmp_path: Path) -> None:
    keras = model()
    expected = keras.evaluate(X, Y, batch_size=8, verbose=0, return_dict=True)  # before: Keras forgets its models
    expected_rows = keras.predict(X, verbose=0)
    estimator = model_to_estimator(keras, model_dir=str(tmp_path), metric_names_map={"accuracy": "acc", "auc": "auc"})
    results = estimator.evaluate(rows(repeats=False))
    assert results["loss"] == pytest.approx(expected["loss"], rel=1e-5)
    assert results["acc"] == pytest.approx(expected["accuracy"])
    assert results["auc"] == pytest.approx(expected["auc"], abs=1e-5)
    predictions = np.stack([row["p"] for row in estimator.predict(rows(repeats=False))])
    np.testing.assert_allclose(predictions, expected_rows, rtol=1e-5)


@pytest.mark.parametrize("name", ["SGD", "Adam", "RMSprop"])
def test_training_gives_the_weights_of_fit(tmp_path: Path, name: str) -> None:
    make = getattr(tf_keras.optimizers.legacy, name)
    keras, same = model(make(0.05)), model(make(0.05))
    same.set_weights(keras.get_weights())
    same.fit(X, Y, batch_size=8, epochs=1, shuffle=False, verbose=0)
    expected = same.get_layer("p").get_weights()[0]
    estimator = model_to_estimator(keras, model_dir=str(tmp_path), checkpoint_format="saver")
    estimator.train(rows(), steps=4)
    np.testing.assert_allclose(estimator.get_variable_value("p/kernel"), expected, rtol=1e-4, atol=1e-6)
    assert estimator.get_variable_value("global_step") == 4


def test_current_keras_optimizers_train(tmp_path: Path) -> None:
    estimator = model_to_estimator(model(tf_keras.optimizers.Adam(0.1)), model_dir=str(tmp_path))
    before = estimator.evaluate(rows(repeats=False))["loss"]
    estimator.train(rows(), steps=20)
    assert estimator.evaluate(rows(repeats=False))["loss"] < before


class MakesVariable(tf.compat.v1.train.SessionRunHook):
    """Makes a trainable variable, which no warm start has."""

    def begin(self) -> None:
        tf.compat.v1.get_variable("made_by_hook", [2])


def test_a_run_that_resumes_counts_from_the_step_of_an_object_based_checkpoint(tmp_path: Path) -> None:
    for step in (3, 6):
        estimator = model_to_estimator(model(), model_dir=str(tmp_path))
        estimator.train(rows(), steps=3, hooks=[MakesVariable()])
        assert estimator.get_variable_value("estimator_global_step/.ATTRIBUTES/VARIABLE_VALUE") == step


def test_model_to_estimator_needs_a_compiled_keras_2_model() -> None:
    with pytest.raises(ValueError, match="Either `keras_model` or `keras_model_path` needs to be provided"):
        model_to_estimator()
    with pytest.raises(ValueError, match="but not both"):
        model_to_estimator(model(), "somewhere")
    with pytest.raises(ValueError, match="has not been compiled yet"):
        model_to_estimator(tf_keras.Sequential([tf_keras.layers.Dense(1, input_shape=(3,))]))
    with pytest.raises(ValueError, match="takes a model of Keras 2"):
        model_to_estimator(3)


def test_a_cerebras_estimator_from_a_keras_model_trains_as_fit_does(tmp_path: Path) -> None:
    keras, same = (model(tf_keras.optimizers.legacy.SGD(0.05)) for _ in range(2))
    same.set_weights(keras.get_weights())
    same.fit(X, Y, batch_size=8, epochs=1, shuffle=False, verbose=0)
    expected = same.get_layer("p").get_weights()[0]
    asked: list[int] = []

    def input_fn(params: Any) -> Any:
        asked.append(params["batch"])
        return rows()()

    estimator = KerasModelToCerebrasEstimator(keras, model_dir=str(tmp_path), params={"batch": 8})
    estimator.train(input_fn, steps=4)
    assert asked == [8]
    np.testing.assert_allclose(estimator.get_variable_value("p/kernel"), expected, rtol=1e-4, atol=1e-6)
