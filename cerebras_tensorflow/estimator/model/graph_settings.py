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
