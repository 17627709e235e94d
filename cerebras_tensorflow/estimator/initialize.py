"""Initial values of variables: the initializers' own, one variable at a time, or a warm start's."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import tensorflow as tf

from cerebras_tensorflow.estimator.model_call import Model
from cerebras_tensorflow.estimator.warm_start import WarmStart, WarmStartSettings, checkpoint_of, plan_warm_start
from cerebras_tensorflow.graph.nodes import GraphDef, prune
from cerebras_tensorflow.graph.randomness import INITIALIZATION_STEP, SEEDED_COUNTER, counter_feed, make_stateless
from cerebras_tensorflow.runtime.session import ProgramSession
from cerebras_tensorflow.saver.checkpoint_reader import open_checkpoint

_TOGETHER_BYTES = 16 << 20  # of values that are made in one run: TensorFlow prepares each kind of run


def initialize(session: ProgramSession, model: Model, settings: WarmStartSettings | None) -> None:
    """Set the variables that a checkpoint holds: by the initializers where that can be, in the session's own memory."""
    made = _initializers(model, settings)
    # An initializer that reads a variable would need those of this session, in their order.
    if not any(node.op == "VarHandleOp" for node in made.graph_def.node):
        rest = session.assign(made.graph_def, made.tensors, made.feeds)
        made = replace(made, variables={name: made.variables[name] for name in rest})
    for name, value in _values(model, settings, made):
        session.load(name, value)


def initial_values(model: Model, settings: WarmStartSettings | None) -> Iterator[tuple[str, np.ndarray]]:
    """Yield (name, value) of each variable that a checkpoint holds; one large value is in memory at a time.

    Random initializers draw by (seed, op), so a value does not depend on which others were drawn before it.
    """
    yield from _values(model, settings, _initializers(model, settings))


@dataclass(frozen=True)
class _Initializers:
    """What makes the values of variables that no warm start gives.

    Attributes:
        graph_def: The ops, stateless.
        variables: Checkpoint name -> variable.
        tensors: Checkpoint name -> name of the tensor with the value.
        feeds: For a run of the graph.
        warm: What the warm start gives.
    """

    graph_def: GraphDef
    variables: Mapping[str, Any]
    tensors: Mapping[str, str]
    feeds: Mapping[str, np.ndarray]
    warm: WarmStart


def _initializers(model: Model, settings: WarmStartSettings | None) -> _Initializers:
    variables = model.saved_names()
    warm = plan_warm_start(model, settings) if settings is not None else WarmStart({}, ())
    cold = {name: variable for name, variable in variables.items() if name not in {*warm.sources, *warm.by_vocabulary}}
    tensors = {name: variable.initializer.inputs[1] for name, variable in cold.items()}
    roots = [tensor.op.name for tensor in tensors.values()]
    graph_def = make_stateless(prune(model.graph.as_graph_def(), roots))
    has_random = any(node.name == SEEDED_COUNTER for node in graph_def.node)
    feeds = counter_feed(INITIALIZATION_STEP, 0, secrets.randbits(63)) if has_random else {}
    return _Initializers(graph_def, cold, {name: tensor.name for name, tensor in tensors.items()}, feeds, warm)


def _values(model: Model, settings: WarmStartSettings | None, made: _Initializers) -> Iterator[tuple[str, np.ndarray]]:
    """Yield (name, value) of the variables of the initializers, then of those of the warm start."""
    if made.variables:
        graph = tf.Graph()
        with graph.as_default():
            tf.graph_util.import_graph_def(made.graph_def, name="")
        config = tf.compat.v1.ConfigProto()
        config.graph_options.rewrite_options.disable_meta_optimizer = True
        with tf.compat.v1.Session(graph=graph, config=config) as session:
            for names in _groups(made.variables):
                values = session.run([graph.get_tensor_by_name(made.tensors[name]) for name in names], made.feeds)
                yield from zip(names, map(np.asarray, values), strict=True)
    if settings is not None and made.warm.sources:
        with open_checkpoint(checkpoint_of(settings)) as reader:
            for name, source in made.warm.sources.items():
                yield name, reader.read(source)
    if settings is not None and made.warm.by_vocabulary:
        yield from _by_vocabulary(model.saved_names(), settings, made.warm.by_vocabulary)


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
