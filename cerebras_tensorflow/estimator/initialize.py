"""Initial values of variables: the initializers' own, one variable at a time, or a warm start's."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from cerebras_tensorflow.estimator.model_call import Model
from cerebras_tensorflow.estimator.warm_start import WarmStart, WarmStartSettings, checkpoint_of, plan_warm_start
from cerebras_tensorflow.graph.nodes import prune
from cerebras_tensorflow.graph.randomness import INITIALIZATION_STEP, SEEDED_COUNTER, counter_feed, make_stateless
from cerebras_tensorflow.saver.checkpoint_reader import open_checkpoint

_TOGETHER_BYTES = 16 << 20  # of values that are made in one run: TensorFlow prepares each kind of run


def initial_values(model: Model, settings: WarmStartSettings | None) -> Iterator[tuple[str, np.ndarray]]:
    """Yield (name, value) of each variable that a checkpoint holds; one large value is in memory at a time.

    Random initializers draw by (seed, op), so a value does not depend on which others were drawn before it.
    """
    variables = model.saved_names()
    plan = plan_warm_start(model, settings) if settings is not None else WarmStart({}, ())
    cold = {name: variable for name, variable in variables.items() if name not in {*plan.sources, *plan.by_vocabulary}}
    tensors = {name: variable.initializer.inputs[1] for name, variable in cold.items()}
    roots = [tensor.op.name for tensor in tensors.values()]
    graph_def = make_stateless(prune(model.graph.as_graph_def(), roots))
    graph = tf.Graph()
    with graph.as_default():
        tf.graph_util.import_graph_def(graph_def, name="")
    config = tf.compat.v1.ConfigProto()
    config.graph_options.rewrite_options.disable_meta_optimizer = True
    has_random = any(node.name == SEEDED_COUNTER for node in graph_def.node)
    feeds = counter_feed(INITIALIZATION_STEP, 0, secrets.randbits(63)) if has_random else {}
    with tf.compat.v1.Session(graph=graph, config=config) as session:
        for names in _groups(cold):
            values = session.run([graph.get_tensor_by_name(tensors[name].name) for name in names], feeds)
            yield from zip(names, map(np.asarray, values), strict=True)
    if settings is not None and plan.sources:
        with open_checkpoint(checkpoint_of(settings)) as reader:
            for name, source in plan.sources.items():
                yield name, reader.read(source)
    if settings is not None and plan.by_vocabulary:
        yield from _by_vocabulary(variables, settings, plan.by_vocabulary)


def _groups(variables: Mapping[str, Any]) -> Iterator[list[str]]:
    """Yield the names of variables whose values are made in one run: few bytes together, or one variable."""
    group: list[str] = []
    group_bytes = 0
    for name, variable in variables.items():
        elements = int(np.prod(variable.shape.as_list(), dtype=np.int64))
        num_bytes = elements * variable.dtype.base_dtype.size
        if group and group_bytes + num_bytes > _TOGETHER_BYTES:
            yield group
            group, group_bytes = [], 0
        group.append(name)
        group_bytes += num_bytes
    if group:
        yield group


def _by_vocabulary(
    variables: Mapping[str, Any], settings: WarmStartSettings, names: Sequence[str]
) -> Iterator[tuple[str, np.ndarray]]:
    """Yield (name, value) of variables whose rows are those of the checkpoint that belong to the same words."""
    with tf.Graph().as_default():
        made = {
            name: tf.compat.v1.get_variable(name, variables[name].shape, variables[name].dtype.base_dtype)
            for name in names
        }
        tf.compat.v1.train.warm_start(
            checkpoint_of(settings),
            vars_to_warm_start=None,
            var_name_to_vocab_info={name: settings.var_name_to_vocab_info[name] for name in names},
            var_name_to_prev_var_name={
                name: source for name, source in settings.var_name_to_prev_var_name.items() if name in names
            },
        )
        with tf.compat.v1.Session() as session:
            for name, variable in made.items():
                session.run(variable.initializer)
                yield name, session.run(variable)
