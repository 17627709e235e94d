"""Initial values of variables: the initializers' own, one variable at a time, or a warm start's."""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import tensorflow as tf

from cerebras_tensorflow.errors import CheckpointError
from cerebras_tensorflow.estimator.model_call import Model
from cerebras_tensorflow.graph.nodes import prune
from cerebras_tensorflow.graph.randomness import INITIALIZATION_STEP, SEEDED_COUNTER, counter_feed, make_stateless
from cerebras_tensorflow.logs import run_log
from cerebras_tensorflow.saver.checkpoint_reader import open_checkpoint


@dataclass(frozen=True)
class WarmStartSettings:
    """Where variables start from, instead of their initializers.

    Attributes:
        ckpt_to_initialize_from: A checkpoint of any kind that we read, or a folder with a `checkpoint` file.
        vars_to_warm_start: Regular expression, or list of them (matched from the start of the name) or of variables.
            None: none. Default: all.
        var_name_to_vocab_info: Not supported; must be empty.
        var_name_to_prev_var_name: Name in the model -> name in the checkpoint.
        is_lenient: Whether variables that the checkpoint lacks, or holds in another shape, keep their initial value.
    """

    ckpt_to_initialize_from: str
    vars_to_warm_start: Any = ".*"
    var_name_to_vocab_info: Mapping[str, Any] = field(default_factory=dict)
    var_name_to_prev_var_name: Mapping[str, str] = field(default_factory=dict)
    is_lenient: bool = False

    def __post_init__(self) -> None:
        if not self.ckpt_to_initialize_from:
            raise ValueError("`ckpt_to_initialize_from` MUST be set in WarmStartSettings")
        if self.var_name_to_vocab_info:
            raise ValueError(
                "WarmStartSettings: var_name_to_vocab_info is not supported; map the vocabulary beforehand"
            )


def warm_start_settings(value: Any) -> WarmStartSettings | None:
    """Return a caller's warm start as settings. A path alone loads what matches and reports the rest."""
    if value is None or isinstance(value, WarmStartSettings):
        return value
    if isinstance(value, str):
        return WarmStartSettings(value, is_lenient=True)
    if hasattr(value, "ckpt_to_initialize_from"):
        return WarmStartSettings(
            value.ckpt_to_initialize_from,
            value.vars_to_warm_start,
            value.var_name_to_vocab_info,
            value.var_name_to_prev_var_name,
        )
    raise ValueError(f"warm_start_from must be a path or WarmStartSettings, given: {value!r}")


def initial_values(model: Model, settings: WarmStartSettings | None) -> Iterator[tuple[str, np.ndarray]]:
    """Yield (name, value) of each variable that a checkpoint holds; one value is in memory at a time.

    Random initializers draw by (seed, op), so a value does not depend on which others were drawn before it.
    """
    variables = model.saved_names()
    warm = _warm_values(variables, settings) if settings else {}
    cold = {name: variable for name, variable in variables.items() if name not in warm}
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
        for name, tensor in tensors.items():
            yield name, np.asarray(session.run(graph.get_tensor_by_name(tensor.name), feeds))
    if settings is not None and warm:
        with open_checkpoint(settings.ckpt_to_initialize_from) as reader:
            for name, source in warm.items():
                yield name, reader.read(source)


def _warm_values(variables: Mapping[str, Any], settings: WarmStartSettings) -> dict[str, str]:
    """Return name -> name in the checkpoint, of the variables that warm-start."""
    wanted = [name for name in _selected(variables, settings.vars_to_warm_start) if name != "global_step"]
    found: dict[str, str] = {}
    problems = []
    with open_checkpoint(settings.ckpt_to_initialize_from) as reader:
        for name in wanted:
            source = settings.var_name_to_prev_var_name.get(name, name)
            shape = tuple(variables[name].shape.as_list())
            if source not in reader:
                problems.append(f"{source} is not there")
            elif reader.entry(source).shape != shape:
                problems.append(f"{source} has shape {reader.entry(source).shape}, the model's has {shape}")
            else:
                found[name] = source
    path = settings.ckpt_to_initialize_from
    if problems and not settings.is_lenient:
        raise CheckpointError(f"cannot warm-start from {path}: {'; '.join(problems[:5])}")
    if wanted and not found:
        raise CheckpointError(f"cannot warm-start from {path}: it shares no variable with the model")
    run_log.info("Warm-starting %d of %d variables from %s.", len(found), len(variables), path)
    for problem in problems[:20]:
        run_log.info("Not warm-started: %s.", problem)
    return found


def _selected(variables: Mapping[str, Any], wanted: Any) -> list[str]:
    if wanted is None:
        return []
    items: Iterable[Any] = [wanted] if isinstance(wanted, str) else wanted
    chosen = []
    for item in items:
        if isinstance(item, str):
            chosen += [name for name in variables if re.match(item, name)]
        else:
            chosen += [name for name, variable in variables.items() if variable is item]
    return list(dict.fromkeys(chosen))
