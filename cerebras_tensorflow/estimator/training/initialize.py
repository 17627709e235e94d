"""Initial values of variables: the initializers' own, one variable at a time, or a warm start's."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import tensorflow as tf

from cerebras_tensorflow.compiler.slicing.apply_ops import slice_bounds
from cerebras_tensorflow.compiler.slicing.initializers import SlicedInitializers
from cerebras_tensorflow.estimator.model.model_call import Model
from cerebras_tensorflow.estimator.model.partitions import PartKey, read_key
from cerebras_tensorflow.estimator.training.checkpoint_saver import NamedValue
from cerebras_tensorflow.estimator.training.warm_start import (
    WarmStart,
    WarmStartSettings,
    checkpoint_of,
    plan_warm_start,
)
from cerebras_tensorflow.graph.nodes import GraphDef, prune
from cerebras_tensorflow.graph.randomness import INITIALIZATION_STEP, SEEDED_COUNTER, counter_feed, make_stateless
from cerebras_tensorflow.graph.sums import fix_order_of_sums
from cerebras_tensorflow.runtime.session import ProgramSession
from cerebras_tensorflow.saver.checkpoint_reader import open_checkpoint
from cerebras_tensorflow.saver.interface import as_bytes

_TOGETHER_BYTES = 16 << 20  # of values made in one session run, since TensorFlow prepares each new kind of run
_SLICE_BYTES = 16 << 20  # of one slice of a large value


def initialize(
    session: ProgramSession, model: Model, settings: WarmStartSettings | None, of_hooks: Set[str] = frozenset()
) -> None:
    """Set all variables of checkpoints, by running initializers in the session's own memory where possible.

    Args:
        session: The session.
        model: The model.
        settings: The warm start, or None.
        of_hooks: Variables that hooks have made. A warm start does not set them.
    """
    made = _initializers(model, settings, of_hooks)
    # Initializers that read variables would need this session's variables, set in the right order.
    if not any(node.op == "VarHandleOp" for node in made.graph_def.node):
        rest = session.assign(made.graph_def, made.tensors, made.feeds)
        made = replace(made, variables={name: made.variables[name] for name in rest})
    for name, value in _values(model, settings, made):
        session.load(name, value)


def initial_values(model: Model, settings: WarmStartSettings | None) -> Iterator[tuple[str, np.ndarray]]:
    """Yield (name, value) of each variable in checkpoints, with one large value in memory at a time.

    Random initializers draw by (seed, op), so the order of draws does not matter.
    """
    yield from _values(model, settings, _initializers(model, settings))


def set_initial_values(session: ProgramSession, model: Model, names: Set[str]) -> None:
    """Set the named variables to the values of their initializers."""
    if names:
        made = _initializers(model, None)
        chosen = {name: variable for name, variable in made.variables.items() if name in names}
        for name, value in _values(model, None, replace(made, variables=chosen)):
            session.load(name, value)


def initial_rows(model: Model, settings: WarmStartSettings | None) -> Iterator[NamedValue]:
    """Like `initial_values` with the same bits, but make large values in slices if their initializers allow it.

    Drawing a large embedding at once takes several times its size in memory. Masks of sparse weights are left out,
    unless the warm start has them: they do not exist yet.
    """
    made = _initializers(model, settings)
    masks = {weight.mask for weight in model.sparse}
    made = replace(made, variables={name: one for name, one in made.variables.items() if name not in masks})
    slices, bounds = _slices(made)
    with _session_of(replace(made, graph_def=slices.graph_def)) as session:
        for name, cuts in bounds.items():
            variable = made.variables[name]
            shape = tuple(variable.shape.as_list())
            feeds = [slices.feeds(made.feeds, start, (stop - start, *shape[1:])) for start, stop in pairwise(cuts)]
            rows = (as_bytes(session.run(slices.outputs[name], feed)) for feed in feeds)
            yield name, np.dtype(variable.dtype.base_dtype.as_numpy_dtype), shape, rows
        rest = {name: variable for name, variable in made.variables.items() if name not in bounds}
        for name, value in _drawn(session, replace(made, variables=rest)):
            yield name, value.dtype, value.shape, value
    for name, value in _warm(model, settings, made.warm):
        yield name, value.dtype, value.shape, value


def _slices(made: _Initializers) -> tuple[SlicedInitializers, Mapping[str, tuple[int, ...]]]:
    """Return the initializers with copies that make slices, and the bounds of slices by variable."""
    slices, bounds = SlicedInitializers(made.graph_def), {}
    for name, variable in made.variables.items():
        if not variable.shape.is_fully_defined():
            continue
        shape = tuple(variable.shape.as_list())
        cuts = slice_bounds(shape, _num_bytes(variable), _SLICE_BYTES)
        if len(cuts) > 2 and slices.add(name, made.tensors[name], shape):
            bounds[name] = cuts
    return slices, bounds


@dataclass(frozen=True)
class _Initializers:
    """The initializers of variables that the warm start does not set.

    Attributes:
        graph_def: The ops, stateless.
        variables: Checkpoint name -> variable.
        tensors: Checkpoint name -> name of the tensor with the value.
        feeds: Feeds for a run of the graph.
        warm: Variables that the warm start sets.
    """

    graph_def: GraphDef
    variables: Mapping[str, Any]
    tensors: Mapping[str, str]
    feeds: Mapping[str, np.ndarray]
    warm: WarmStart


def _initializers(model: Model, settings: WarmStartSettings | None, of_hooks: Set[str] = frozenset()) -> _Initializers:
    variables = model.saved_names()
    warm = plan_warm_start(model, settings, of_hooks) if settings is not None else WarmStart({}, ())
    cold = {name: variable for name, variable in variables.items() if name not in {*warm.sources, *warm.by_vocabulary}}
    tensors = {name: variable.initializer.inputs[1] for name, variable in cold.items()}
    roots = [tensor.op.name for tensor in tensors.values()]
    graph_def, _ = fix_order_of_sums(prune(model.graph.as_graph_def(), roots))
    graph_def = make_stateless(graph_def)
    has_random = any(node.name == SEEDED_COUNTER for node in graph_def.node)
    feeds = counter_feed(INITIALIZATION_STEP, 0, secrets.randbits(63)) if has_random else {}
    return _Initializers(graph_def, cold, {name: tensor.name for name, tensor in tensors.items()}, feeds, warm)


def _values(model: Model, settings: WarmStartSettings | None, made: _Initializers) -> Iterator[tuple[str, np.ndarray]]:
    """Yield (name, value) of the variables of the initializers, then of those of the warm start."""
    if made.variables:
        with _session_of(made) as session:
            yield from _drawn(session, made)
    yield from _warm(model, settings, made.warm)


@contextmanager
def _session_of(made: _Initializers) -> Iterator[Any]:
    """A session on the initializers' graph."""
    graph = tf.Graph()
    with graph.as_default():
        tf.graph_util.import_graph_def(made.graph_def, name="")
    config = tf.compat.v1.ConfigProto()
    config.graph_options.rewrite_options.disable_meta_optimizer = True
    with tf.compat.v1.Session(graph=graph, config=config) as session:
        yield session


def _drawn(session: Any, made: _Initializers) -> Iterator[tuple[str, np.ndarray]]:
    """Yield (name, value) of the variables of the initializers."""
    for names in _groups(made.variables):
        values = session.run([made.tensors[name] for name in names], made.feeds)
        yield from zip(names, map(np.asarray, values), strict=True)


def _warm(model: Model, settings: WarmStartSettings | None, warm: WarmStart) -> Iterator[tuple[str, np.ndarray]]:
    """Yield (name, value) of the variables that the warm start sets."""
    if settings is not None and warm.sources:
        with open_checkpoint(checkpoint_of(settings)) as reader:
            for name, source in warm.sources.items():
                yield name, read_key(reader, source)
    if settings is not None and warm.by_vocabulary:
        yield from _by_vocabulary(model, settings, warm.by_vocabulary)


def _groups(variables: Mapping[str, Any]) -> Iterator[list[str]]:
    """Yield groups of names whose values are made in one run: several small variables, or one large one."""
    group: list[str] = []
    group_bytes = 0
    for name, variable in variables.items():
        num_bytes = _num_bytes(variable)
        if group and group_bytes + num_bytes > _TOGETHER_BYTES:
            yield group
            group, group_bytes = [], 0
        group.append(name)
        group_bytes += num_bytes
    if group:
        yield group


def _num_bytes(variable: Any) -> int:
    """Size of a variable [B]; 0 if the graph does not fix its shape."""
    return int(variable.shape.num_elements() or 0) * int(variable.dtype.base_dtype.size)


def _by_vocabulary(model: Model, settings: WarmStartSettings, names: Sequence[str]) -> Iterator[tuple[str, np.ndarray]]:
    """Yield (name, value) of variables whose rows come from the checkpoint's rows for the same words."""
    variables, keys = model.saved_names(), model.checkpoint_keys()
    wholes: dict[str, list[str]] = {}
    for name in names:
        wholes.setdefault(str(keys[name]), []).append(name)
    with tf.Graph().as_default():
        made = {}
        for whole, parts in wholes.items():
            key, part = keys[parts[0]], variables[parts[0]]
            shape = key.shape if isinstance(key, PartKey) else part.shape
            made[whole] = tf.compat.v1.get_variable(whole, shape, part.dtype.base_dtype)
        tf.compat.v1.train.warm_start(
            checkpoint_of(settings),
            vars_to_warm_start=None,
            var_name_to_vocab_info={whole: settings.var_name_to_vocab_info[whole] for whole in made},
            var_name_to_prev_var_name={
                whole: source for whole, source in settings.var_name_to_prev_var_name.items() if whole in made
            },
        )
        with tf.compat.v1.Session() as session:
            for whole, variable in made.items():
                session.run(variable.initializer)
                value = session.run(variable)
                for name in wholes[whole]:
                    key = keys[name]
                    yield name, value[key.region] if isinstance(key, PartKey) else value
