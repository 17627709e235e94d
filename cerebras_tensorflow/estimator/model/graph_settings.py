"""New graphs for input_fn and model_fn, and TensorFlow's switches while they are built."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import tensorflow as tf

from cerebras_tensorflow import tf_private
from cerebras_tensorflow.estimator.config.run_settings import RunSettings


def new_graph(settings: RunSettings) -> tf.Graph:
    """Return a graph with the seed of a run and its global step, which a subclass of Estimator may leave out."""
    graph = tf.Graph()
    tf_private.close_scopes_fast(graph)
    with graph.as_default(), graph_semantics():
        tf.compat.v1.set_random_seed(settings.tf_random_seed)
        (settings.make_global_step or tf.compat.v1.train.create_global_step)(graph)
    return graph


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


def variables_without_values() -> Any:
    """Return a context in which variables of known shape get no ops for an initial value: a plan needs none.

    Half of the ops of a large model belong to initial values. Their variables have no `initializer`.
    """
    return tf.variable_creator_scope(_create_without_value)


def _create_without_value(create: Callable[..., Any], **settings: Any) -> Any:
    """Make a variable without a value, if the caller describes its value by a function and its shape is known."""
    shape, collections = tf.TensorShape(settings.get("shape")), settings.get("collections") or ["variables"]
    is_described = callable(settings.get("initial_value")) and shape.is_fully_defined() and settings.get("dtype")
    if not is_described or "variables" not in collections or settings.get("caching_device"):
        return create(**settings)
    variable = tf_private.variable_without_value(settings)
    graph = tf.compat.v1.get_default_graph()
    others = [name for name in collections if name not in ("variables", "trainable_variables")]
    for name in [*others, *(["trainable_variables"] if variable.trainable else [])]:
        graph.add_to_collection(name, variable)
    return variable
