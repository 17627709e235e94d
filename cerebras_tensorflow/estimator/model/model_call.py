"""Call model_fn in a new graph with placeholders for the batch, and make a step from the result."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, Protocol

import tensorflow as tf

from cerebras_tensorflow import tf_private
from cerebras_tensorflow.compiler.step import Step
from cerebras_tensorflow.estimator.config.run_settings import RunSettings
from cerebras_tensorflow.estimator.mode_keys import ModeKeys
from cerebras_tensorflow.estimator.model.inputs import BatchInputs
from cerebras_tensorflow.estimator.model.negative_labels import ignore_negative_labels
from cerebras_tensorflow.estimator.user_functions import call_with, parameters_of
from cerebras_tensorflow.graph.nodes import prune
from cerebras_tensorflow.logs import run_log


@dataclass(frozen=True)
class Model:
    """The result of one call of model_fn.

    Attributes:
        graph: The graph.
        spec: The EstimatorSpec.
        inputs: The placeholders of the batch.
        global_step: The global step variable.
        mode: The mode of the call.
        ignores_negative_labels: Whether labels of -1 give no loss and no gradient.
    """

    graph: tf.Graph
    spec: Any
    inputs: BatchInputs
    global_step: Any
    mode: str
    ignores_negative_labels: bool = False

    @property
    def train_node(self) -> str | None:
        """Name of the train op; None outside TRAIN mode, even if the spec has one."""
        op = self.spec.train_op
        if op is None or self.mode != ModeKeys.TRAIN:
            return None
        return op_name(self.graph, op)

    @property
    def scaffold(self) -> Any:
        """The spec's Scaffold; None if it has none."""
        return getattr(self.spec, "scaffold", None)

    def saved_names(self) -> dict[str, Any]:
        """Return checkpoint name -> variable, for all variables in checkpoints."""
        return {variable_name(variable): variable for variable in self.graph.get_collection("variables")}

    def _name_as_in_checkpoints(self, graph_def: Any) -> None:
        """Name handles as their variables in checkpoints; the compiler and the stores use these names."""
        saved = {variable.handle.op.name: name for name, variable in self.saved_names().items()}
        for node in graph_def.node:
            if node.op == "VarHandleOp" and node.name in saved:
                node.attr["shared_name"].s = saved[node.name].encode()

    def step(self, roots: list[Any]) -> Step:
        """Return the compiler's input for runs of the given tensors and ops."""
        names = [op_name(self.graph, root) for root in roots]
        weights = [variable.handle.op.name for variable in self.graph.get_collection("variables")]
        names += [*weights, *self.inputs.names]
        names += [self.train_node] if self.train_node else []
        names = list(dict.fromkeys(names))
        graph_def = prune(self.graph.as_graph_def(), names)
        self._name_as_in_checkpoints(graph_def)
        return Step(
            graph_def=ignore_negative_labels(graph_def) if self.ignores_negative_labels else graph_def,
            roots=names,
            train_node=self.train_node,
            sources=self.inputs.names,
            global_step=self.global_step.handle.op.name,
            weights=weights,
        )


class BatchSource(Protocol):
    """Makes placeholders for the batch: an input pipeline, or the input receiver of an export."""

    def placeholders(self) -> BatchInputs:
        """Make placeholders for the batch in the current graph."""


def call_model_fn(
    model_fn: Callable[..., Any],
    pipeline: BatchSource,
    mode: str,
    params: Any,
    settings: RunSettings,
    ignores_negative_labels: bool = False,
) -> Model:
    """Call a model_fn in a new graph.

    Args:
        model_fn: The caller's.
        pipeline: Makes the placeholders of the batch.
        mode: One of ModeKeys.
        params: Passed to model_fn if it takes params.
        settings: Settings of the run, with the config for model_fn.
        ignores_negative_labels: Whether labels of -1 give no loss.

    Raises:
        ValueError: If input_fn returns labels and model_fn does not take them, or model_fn does not return a spec.
    """
    graph = tf.Graph()
    with graph.as_default(), graph_semantics():
        tf.compat.v1.set_random_seed(settings.tf_random_seed)
        global_step = tf.compat.v1.train.create_global_step(graph)
        inputs = pipeline.placeholders()
        run_log.info("Calling model_fn.")
        offered = {"mode": mode, "params": copy.deepcopy(params), "config": settings.config}
        spec = call_with_batch(model_fn, inputs.features, inputs.labels, offered)
        for name in ("mode", "loss", "train_op", "predictions"):
            if not hasattr(spec, name):
                raise ValueError(
                    f"model_fn should return an EstimatorSpec. It returned {spec!r:.200} ({type(spec).__name__})."
                )
    return Model(graph, spec, inputs, global_step, mode, ignores_negative_labels)


def call_with_batch(model_fn: Callable[..., Any], features: Any, labels: Any, offered: Mapping[str, Any]) -> Any:
    """Call a model_fn in the current graph.

    Args:
        model_fn: The caller's.
        features: Its first argument.
        labels: None if there are none.
        offered: What else it may take, by name.

    Raises:
        ValueError: If there are labels, and it does not take them.
    """
    taken = parameters_of(model_fn)
    if "labels" in taken or "**" in taken:
        offered = {**offered, "labels": labels}
    elif labels is not None:
        raise ValueError("model_fn does not take labels, but input_fn returns labels.")
    if "features" in taken:
        return call_with(model_fn, {**offered, "features": features})
    return call_with(model_fn, offered, features)


@contextmanager
def graph_semantics() -> Iterator[None]:
    """Set TensorFlow's switches for building a model's graph: resource variables, and tf.cond as Switch and Merge.

    So a conditional weight update has one op for each weight instead of one op for all weights. A variable that is made
    inside a tf.cond gets the name that it would have outside.
    """
    had_resources = tf.compat.v1.resource_variables_enabled()
    had_control_flow = tf.compat.v1.control_flow_v2_enabled()
    tf.compat.v1.enable_resource_variables()
    tf.compat.v1.disable_control_flow_v2()
    try:
        with tf.variable_creator_scope(_create_variable):
            yield
    finally:
        if not had_resources:
            tf.compat.v1.disable_resource_variables()
        if had_control_flow:
            tf.compat.v1.enable_control_flow_v2()


def _create_variable(create: Callable[..., Any], **settings: Any) -> Any:
    """Make a resource variable, even if the caller asks for a reference variable, outside the scope of a tf.cond."""
    settings["use_resource"] = True
    graph = tf.compat.v1.get_default_graph()
    inside = tf_private.scope_inside_cond(graph)
    if inside is None:
        return create(**settings)
    with tf.compat.v1.name_scope(None), tf.compat.v1.name_scope(f"{inside}/") if inside else nullcontext():
        return create(**settings)


def local_init_of(model: Model) -> Any:
    """Return the op that initializes local variables and tables: the Scaffold's, or a new one."""
    if model.scaffold is not None and model.scaffold.local_init_op is not None:
        return model.scaffold.local_init_op
    with model.graph.as_default(), graph_semantics():
        return tf.group(tf.compat.v1.local_variables_initializer(), tf.compat.v1.tables_initializer())


def local_initializers(model: Model) -> frozenset[str]:
    """Return the names of the ops that initialize local variables and tables."""
    local = [variable.initializer for variable in model.graph.get_collection("local_variables")]
    return frozenset(op.name for op in [*local, *model.graph.get_collection("table_initializer")])


def new_local_init(model: Model, known: frozenset[str]) -> list[Any]:
    """Return the ops that initialize local variables and tables made by hooks."""
    if model.scaffold is not None and model.scaffold.local_init_op is not None:
        return []
    new = local_initializers(model) - known
    return [model.graph.get_operation_by_name(name) for name in sorted(new)]


def variable_name(variable: Any) -> str:
    """Name of a variable in a checkpoint. A partitioned variable with one part has the name of the whole."""
    part = getattr(variable, "_save_slice_info", None)  # private: no public name for it
    if part is not None and list(part.full_shape) == variable.shape.as_list():
        return str(part.full_name)
    return str(variable.name).split(":")[0]


def op_name(graph: tf.Graph, value: Any) -> str:
    """Name of the op behind an op, a tensor or a variable of a graph."""
    element = graph.as_graph_element(value)
    return str(element.name if isinstance(element, tf.Operation) else element.op.name)
