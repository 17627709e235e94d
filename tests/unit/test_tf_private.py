"""All private names of TensorFlow that we use exist in the installed release."""

from __future__ import annotations

import subprocess
import sys

import pytest
import tensorflow as tf

from cerebras_tensorflow import tf_private


@pytest.mark.parametrize("name", ["get_export_outputs", "export_outputs_for_mode", "build_all_signature_defs"])
def test_signatures_can_be_made(name: str) -> None:
    assert callable(getattr(tf_private.export_utils(), name))


@pytest.mark.parametrize("kind", ["Classification", "Eval", "Export", "Predict", "Regression"])
def test_the_export_output_classes_exist(kind: str) -> None:
    assert isinstance(getattr(tf_private.export_output(), f"{kind}Output"), type)


def test_the_definition_of_an_op_says_whether_it_is_stateful() -> None:
    definitions = tf_private.op_definition("AddV2"), tf_private.op_definition("RandomUniform")
    assert [definition.is_stateful for definition in definitions] == [False, True]


@pytest.mark.parametrize("name", ["LossesContainer", "MetricsContainer"])
def test_keras_has_the_containers_of_a_compiled_model(name: str) -> None:
    assert isinstance(getattr(tf_private.keras_compile_utils(), name), type)


def test_importing_the_module_loads_no_tensorflow() -> None:
    code = "import sys; from cerebras_tensorflow import tf_private; print('tensorflow' in sys.modules)"
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert output.strip() == "False"


def test_options_of_a_dataset_are_read_from_its_graph() -> None:
    options = tf.data.Options()
    options.deterministic = False
    with tf.Graph().as_default():
        variant = tf.data.experimental.to_variant(tf.data.Dataset.range(3).with_options(options))
        operation = variant.op
    message = tf_private.dataset_options(operation.get_attr("serialized_options"))
    assert message.HasField("deterministic")
    assert not message.deterministic
