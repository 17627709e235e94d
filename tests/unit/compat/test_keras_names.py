"""Keras 2 as old scripts see it. Runs in a new process, because the changes affect the whole process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import cerebras_tensorflow

ROOT = Path(cerebras_tensorflow.__file__).parents[1]
ROOTS = ROOT / "cerebras_tensorflow" / "compat" / "roots"
SCRIPT = """
import json, warnings
warnings.simplefilter("ignore")
import tensorflow as tf          # before any Cerebras name, as run.py of 1.8 does
import cerebras_appliance.environment
out = {}
def check(name, value):
    out[name] = bool(value)

from tensorflow.keras.layers import Dense
check("from tensorflow.keras and tf.keras are one", Dense is tf.keras.layers.Dense)
from tensorflow.keras import mixed_precision
check("modules below it are one", mixed_precision is tf.keras.mixed_precision)
import tf_keras
check("tf.keras is tf_keras", tf.keras.layers.Layer is tf_keras.layers.Layer)

Policy = tf.keras.mixed_precision.experimental.Policy
policy = Policy("mixed_float16", loss_scale=None)
check("Policy takes loss_scale None", policy.loss_scale is None)
default = Policy("mixed_float16").loss_scale
check("Policy has dynamic loss scale by default", type(default).__name__ == "DynamicLossScale")
check("Policy takes a number", type(Policy("mixed_float16", loss_scale=8.0).loss_scale).__name__ == "FixedLossScale")
tf.keras.mixed_precision.experimental.set_policy(policy)
check("set_policy sets the global policy", tf.keras.mixed_precision.experimental.global_policy() is policy)
tf.keras.mixed_precision.experimental.set_policy("float32")
from tensorflow.python.keras.mixed_precision.experimental.loss_scale_optimizer import LossScaleOptimizer
check("the private LossScaleOptimizer takes (optimizer, loss_scale)", LossScaleOptimizer)
check("DynamicLossScale is still there", tf.compat.v1.train.experimental.DynamicLossScale(initial_loss_scale=4.0))
check("tf.mixed_precision.experimental", tf.mixed_precision.experimental.DynamicLossScale)

class Layer(tf.keras.layers.Layer):
    def __init__(self):
        super().__init__()
        self.dtype_policy = policy
        self.variable_dtype = "float32"
        self.compute_dtype = "float16"

layer = Layer()
check("dtype_policy can be assigned", layer.dtype_policy is policy)
check("compute_dtype can be assigned", layer.compute_dtype == "float16")
check("variable_dtype can be assigned", layer.variable_dtype == "float32")

init = tf.keras.initializers
makers = {
    "RandomNormal": init.RandomNormal, "RandomUniform": init.RandomUniform, "TruncatedNormal": init.TruncatedNormal,
    "GlorotNormal": init.GlorotNormal, "GlorotUniform": init.GlorotUniform, "HeNormal": init.HeNormal,
    "VarianceScaling": init.VarianceScaling,
    "untruncated": lambda: init.VarianceScaling(distribution="untruncated_normal"),
    "Orthogonal": init.Orthogonal,
}
def values(make, seed=1):
    with tf.Graph().as_default():
        tf.compat.v1.set_random_seed(seed)
        initializer = make()
        kernels = [tf.keras.layers.Dense(4, kernel_initializer=initializer) for _ in range(2)]
        for kernel in kernels:
            kernel.build((None, 4))
        with tf.compat.v1.Session() as session:
            session.run(tf.compat.v1.global_variables_initializer())
            return [session.run(kernel.kernel) for kernel in kernels]
for name, make in makers.items():
    first, second = values(make)
    check(f"{name}: a reused unseeded initializer draws anew", abs(first - second).max() > 1e-4)
    again, _ = values(make)
    check(f"{name}: the graph's seed decides the values", (again == first).all())
    other, _ = values(make, seed=2)
    check(f"{name}: another seed gives others", (other != first).any())
first, second = values(lambda: init.RandomNormal(seed=3))
check("a seeded initializer keeps its values", (first == second).all())

with tf.Graph().as_default():
    conv = tf.keras.layers.Conv2D(2, 3, (1, 1), "same", "channels_last", (1, 1), "relu", True, "zeros")
    check("Conv2D takes the positional order of 2.2", conv.use_bias and conv.activation is tf.keras.activations.relu)
    conv = tf.keras.layers.Conv2D(2, 3, (1, 1), "same", "channels_last", (1, 1), 2, "relu")
    check("Conv2D takes the order of today", conv.groups == 2)

from google.protobuf.json_format import MessageToJson, MessageToDict
from cerebras_appliance.pb.stack.full_pb2 import FullConfig
text = MessageToJson(FullConfig(), including_default_value_fields=False)
check("MessageToJson takes the dropped keyword", text == "{}")
check("True prints defaults", "targetNumReplicas" in MessageToDict(FullConfig(), including_default_value_fields=True))
check("keyword and names together", "target_num_replicas" in MessageToJson(
    FullConfig(target_num_replicas=-1), preserving_proto_field_name=True, sort_keys=True,
    including_default_value_fields=False))
from cerebras_tensorflow.estimator.keras_model import model_to_estimator
check("tf.keras.estimator.model_to_estimator is ours", tf.keras.estimator.model_to_estimator is model_to_estimator)
from tensorflow.python.keras.layers import Flatten, concatenate
check("private Keras layers are those of tf.keras", Flatten is tf.keras.layers.Flatten)
from tensorflow.python.feature_column.feature_column import linear_model
from tensorflow.python.layers import convolutional
layer = convolutional.Convolution2D(2, 1, _scope=None)
check("private tf.layers are those of tf.keras", isinstance(layer, tf.keras.layers.Conv2D))
with tf.Graph().as_default():
    shape = layer.apply(tf.zeros([1, 2, 2, 1])).shape
    column = tf.feature_column.numeric_column("x")
    total = linear_model({"x": tf.zeros([2, 1])}, [column])
check("a private layer of tf.layers can be applied", shape == (1, 2, 2, 2))
check("the linear model of feature columns can be built", total.shape == (2, 1))
from tensorflow.python.framework import ops
check("ops.Tensor is tf.Tensor", ops.Tensor is tf.Tensor)
check("ops.IndexedSlices is tf.IndexedSlices", ops.IndexedSlices is tf.IndexedSlices)
slices = tf.IndexedSlices(tf.ones([1, 2]), tf.constant([0]), tf.constant([3, 2]))
check("ops.convert_to_tensor_or_indexed_slices", ops.convert_to_tensor_or_indexed_slices(slices) is slices)
import inspect
check("Python's own names stay as they are outside a launch", not hasattr(inspect, "getargspec"))
print("RESULT " + json.dumps(out))
"""
CHECKS = 55


@pytest.fixture(scope="module")
def checks() -> dict[str, bool]:
    path = os.pathsep.join([str(ROOTS / "wheel"), str(ROOT)])
    environ = {name: value for name, value in os.environ.items() if name != "TF_USE_LEGACY_KERAS"}
    environ.update(PYTHONPATH=path, TF_CPP_MIN_LOG_LEVEL="3")
    done = subprocess.run([sys.executable, "-c", SCRIPT], env=environ, capture_output=True, text=True)
    lines = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    assert lines, done.stderr[-3000:]
    return json.loads(lines[0].removeprefix("RESULT "))


def test_keras_2_behaves_as_old_scripts_expect(checks: dict[str, bool]) -> None:
    assert [name for name, held in checks.items() if not held] == []


def test_no_check_was_left_out(checks: dict[str, bool]) -> None:
    assert len(checks) == CHECKS


@pytest.mark.parametrize("name", ["RandomNormal", "TruncatedNormal", "VarianceScaling", "GlorotUniform"])
def test_an_unseeded_initializer_never_gives_two_layers_the_same_weights(checks: dict[str, bool], name: str) -> None:
    assert checks[f"{name}: a reused unseeded initializer draws anew"]
