"""All private names of TensorFlow that we use exist in the installed release."""

from __future__ import annotations

import gc
import importlib
import subprocess
import sys
import threading
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tf_keras

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


@pytest.mark.parametrize("name", ["model_to_estimator", "_create_keras_model_fn", "_save_first_checkpoint"])
def test_the_wheel_makes_estimators_from_keras_models(name: str) -> None:
    assert callable(getattr(tf_private.keras_lib(), name))


def test_listing_the_devices_creates_no_eager_context() -> None:
    code = """
import tensorflow as tf
from cerebras_tensorflow import tf_private
names = tf_private.list_physical_devices()
tf.config.threading.set_inter_op_parallelism_threads(3)  # fails once there is an eager context
print(names)
"""
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert "/physical_device:CPU:0" in output


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


def test_optimizers_scale_the_loss_for_a_strategy_on_request() -> None:
    strategy = tf.distribute.OneDeviceStrategy("/cpu:0")
    with tf.Graph().as_default() as graph, strategy.scope(), tf_private.loss_scaling(strategy):
        assert not tf_private.is_loss_scaled(graph)


def test_a_saver_hook_takes_listeners_once() -> None:
    listener = tf.compat.v1.train.CheckpointSaverListener()
    hook = tf.compat.v1.train.CheckpointSaverHook("anywhere", save_steps=1, listeners=[listener])
    added = tf.compat.v1.train.CheckpointSaverListener()
    tf_private.add_listeners(hook, [listener, added])
    assert hook._listeners == [listener, added]


def test_every_gradient_api_passes_through_one_function() -> None:
    seen: list[int] = []

    def change(gradients: Any, sources: Any) -> Any:
        seen.append(len(tf.nest.flatten(sources)))
        return tf.nest.map_structure(lambda gradient: 2 * gradient, gradients)

    with tf.Graph().as_default(), tf_private.gradients_passed_through(change):
        x, y = tf.Variable(1.0, use_resource=True), tf.Variable(2.0, use_resource=True)
        with tf.GradientTape(persistent=True) as tape:
            loss = x * x * y
        optimizer = tf.compat.v1.train.GradientDescentOptimizer(1.0)
        keras = tf_keras.optimizers.legacy.SGD(1.0)
        found = [
            tf.gradients(loss, [x])[0],
            tf.compat.v1.gradients(loss, x)[0],
            tape.gradient(loss, {"x": x})["x"],
            optimizer.compute_gradients(loss, [x])[0][0],
            keras.get_gradients(loss, [x])[0],
        ]
        with tf.compat.v1.Session() as session:
            session.run(tf.compat.v1.global_variables_initializer())
            assert session.run(found) == [8.0] * 5
    assert seen == [1] * 5
    with tf.Graph().as_default():
        one = tf.constant(1.0)
        tf.gradients(one, [one])
    assert len(seen) == 5, "the switch ends with its block"


def test_a_graph_with_custom_gradients_can_be_freed() -> None:
    with tf.Graph().as_default() as graph:
        x = tf.compat.v1.placeholder(tf.float32, [4], "x")
        tf.gradients(tf.nn.silu(x), [x])
    graph_def, alive = graph.as_graph_def(), weakref.ref(graph)
    del graph, x
    gc.collect()
    assert alive() is not None, "TensorFlow frees it: forget_custom_gradients is not needed any more"
    tf_private.forget_custom_gradients(graph_def)
    gc.collect()
    assert alive() is None


def test_a_gradient_that_the_user_registered_stays() -> None:
    @tf.RegisterGradient("ReversedForTest")
    def reversed_gradient(operation: Any, gradient: Any) -> Any:
        return -gradient

    for _ in range(2):
        with tf.Graph().as_default() as graph:
            x = tf.compat.v1.placeholder(tf.float32, [], "x")
            with graph.gradient_override_map({"Identity": "ReversedForTest"}):
                (gradient,) = tf.gradients(tf.identity(3 * x), [x])
            with tf.compat.v1.Session() as session:
                assert session.run(gradient, {x: 1.0}) == -3
        tf_private.forget_custom_gradients(graph.as_graph_def())


def test_the_body_of_a_function_is_a_graph_with_the_shapes_of_a_call() -> None:
    with tf.Graph().as_default() as graph:
        tf.function(lambda x: tf.matmul(x, tf.ones([3, 4])))(tf.ones([2, 3]))
        (function,) = graph.as_graph_def().library.function
        graph_def, names = tf_private.graph_of_function(function, [tf.TensorShape([2, 3])])
    (result,) = tf.graph_util.import_graph_def(graph_def, return_elements=[names[next(iter(function.ret.values()))]])
    assert result.shape == [2, 4]


def test_nodes_are_imported_as_by_the_public_function() -> None:
    with tf.Graph().as_default() as graph, tf.device("/cpu:0"):
        x = tf.compat.v1.placeholder(tf.float32, [2], "x")
        variable = tf.compat.v1.get_variable("v", [2], use_resource=True)
        tf.function(lambda value: tf.square(value) + variable)(x)
    graph_def = graph.as_graph_def()

    def imported(function: Any) -> Any:
        with tf.Graph().as_default() as new:
            given = tf.constant([1.0, 2.0], name="given")
            function(given)
        return new

    nodes = tf.compat.v1.GraphDef(versions=graph_def.versions, library=graph_def.library)
    nodes.node.extend(node for node in graph_def.node if node.name != "x")
    for node in nodes.node:
        node.attr.pop("_class", None)
    ours = imported(lambda given: tf_private.import_nodes(nodes, "part", {"x": given}))
    theirs = imported(lambda given: tf.graph_util.import_graph_def(nodes, {"x": given}, name="part"))
    assert ours.as_graph_def() == theirs.as_graph_def()
    assert [op.name for op in ours.get_operations()] == [op.name for op in theirs.get_operations()]
    (call,) = [op for op in ours.get_operations() if "PartitionedCall" in op.type]
    assert call.inputs[0].op.name == "given" and call.outputs[0].shape == [2]


def test_a_callable_runs_a_session_with_feeds() -> None:
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        x = tf.compat.v1.placeholder(tf.float32, [], "x")
        run = tf_private.callable_of(session, [(2 * x).name], [tf.square(x).op.name], ["x:0"])
        assert run(np.float32(3.0)) == [6.0]


def scope_names(graph: tf.Graph) -> list[str]:
    """Return the names that TensorFlow gives to scopes opened and closed in many ways."""
    v1 = tf.compat.v1
    names = []

    def note(*words: str | None) -> None:
        with v1.variable_scope(*words) as scope:
            names.append(scope.name)

    with graph.as_default():
        for _ in range(2):
            with v1.variable_scope("a") as outer:
                note(None, "b")
                note(None, "b")
                with v1.variable_scope("b"):
                    note(None, "c")
                    note(None, "c")
                note(None, "b/c")
            with v1.variable_scope(outer):
                note(None, "b")
                note(None, "d")
            note(None, "a/b")
            with v1.variable_scope("a"):
                note(None, "d")
        note(None, "a")
    return names


def test_scopes_that_close_fast_have_the_names_of_tensorflow() -> None:
    graph = tf.Graph()
    tf_private.close_scopes_fast(graph)
    names = scope_names(graph)
    assert names == scope_names(tf.Graph())
    assert {"a/b_1", "a/b/c_1", "a_1"} <= {*names}


def test_the_end_of_a_scope_forgets_the_scopes_in_it() -> None:
    graph = tf.Graph()
    tf_private.close_scopes_fast(graph)
    with graph.as_default(), tf.compat.v1.variable_scope("a"):
        for number in range(3):
            with tf.compat.v1.variable_scope(f"layer_{number}"), tf.compat.v1.variable_scope("dense"):
                pass
    (store,) = graph.get_collection(("__varscope",))
    assert {*store.variable_scopes_count} == {"a"}


def test_a_variable_without_a_value_is_a_handle_and_its_read() -> None:
    with tf.Graph().as_default() as graph:
        settings = {"name": "v", "shape": tf.TensorShape([2, 3]), "dtype": tf.float32, "trainable": True}
        variable = tf_private.variable_without_value({**settings, "initial_value": None, "collections": None})
        assert [op.type for op in graph.get_operations()] == ["VarHandleOp", "ReadVariableOp"]
        assert (variable.name, variable.shape, variable.trainable) == ("v:0", [2, 3], True)
        assert graph.get_collection("variables") == [variable]
        assert tf.gradients(tf.reduce_sum(variable * 2.0), [variable])[0].shape == [2, 3]


def test_an_event_file_has_a_path(tmp_path: Path) -> None:
    with tf.Graph().as_default():
        writer = tf.compat.v1.summary.FileWriter(str(tmp_path))
    writer.flush()
    assert [Path(tf_private.event_file(writer))] == list(tmp_path.iterdir())
    writer.close()


def test_two_threads_that_import_leave_the_importer_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    importer: Any = importlib.import_module("tensorflow.python.framework.importer")
    original, public = importer._ProcessNewOps, importer.import_graph_def
    first_is_in, second_is_in, first_is_out = threading.Event(), threading.Event(), threading.Event()

    def import_graph_def(*arguments: Any, **settings: Any) -> None:
        if first_is_in.is_set():
            second_is_in.set()
            first_is_out.wait(30)  # the second thread would now save what the first one has set
        else:
            first_is_in.set()
            second_is_in.wait(0.1)  # in vain: the second thread waits for the first one
        public(*arguments, **settings)

    def run(is_first: bool) -> None:
        with tf.Graph().as_default():
            tf_private.import_nodes(tf.Graph().as_graph_def())
        if is_first:
            first_is_out.set()

    monkeypatch.setattr(importer, "import_graph_def", import_graph_def)
    threads = [threading.Thread(target=run, args=(is_first,)) for is_first in (True, False)]
    threads[0].start()
    assert first_is_in.wait(30)
    threads[1].start()
    for thread in threads:
        thread.join()
    is_restored = importer._ProcessNewOps is original
    importer._ProcessNewOps = original  # the other tests need it
    assert is_restored
