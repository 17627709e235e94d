"""Call model_fn in a graph, with the batch of an input, and make a step from the result."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, MutableMapping
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, Protocol

import tensorflow as tf

from cerebras_tensorflow.compiler.step import Step
from cerebras_tensorflow.estimator.config.run_settings import RunSettings
from cerebras_tensorflow.estimator.mode_keys import ModeKeys
from cerebras_tensorflow.estimator.model.gradient_marks import marked_gradients, marks_of
from cerebras_tensorflow.estimator.model.graph_settings import graph_semantics, new_graph, variables_without_values
from cerebras_tensorflow.estimator.model.inputs import BatchInputs
from cerebras_tensorflow.estimator.model.negative_labels import ignore_negative_labels
from cerebras_tensorflow.estimator.model.partitions import PartKey, checkpoint_key, checkpoint_keys
from cerebras_tensorflow.estimator.model.sparse_weights import SparseChoice, SparseGraph, SparseWeight
from cerebras_tensorflow.estimator.user_functions import call_with, parameters_of
from cerebras_tensorflow.graph.nodes import prune
from cerebras_tensorflow.logs import run_log

INPUT_SECTIONS = {ModeKeys.TRAIN: "train_input", ModeKeys.EVAL: "eval_input", ModeKeys.PREDICT: "predict_input"}
"""Mode -> section of params with the input's settings, as in the Model Zoo."""


@dataclass(frozen=True)
class Model:
    """The result of one call of model_fn.

    Attributes:
        graph: The graph.
        spec: The EstimatorSpec.
        inputs: The batch.
        global_step: The global step variable.
        mode: The mode of the call.
        ignores_negative_labels: Whether labels of -1 give no loss and no gradient.
        sparse: The weights with masks.
        last_step: Global step at which its training ends; None: unknown.
    """

    graph: tf.Graph
    spec: Any
    inputs: BatchInputs
    global_step: Any
    mode: str
    ignores_negative_labels: bool = False
    sparse: tuple[SparseWeight, ...] = ()
    last_step: int | None = None

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
        """Return name -> variable, for all variables in checkpoints."""
        return {variable_name(variable): variable for variable in self.graph.get_collection("variables")}

    def checkpoint_keys(self) -> dict[str, str]:
        """Return name -> name in checkpoints, without a Saver. A key of a part of a variable is a PartKey."""
        return checkpoint_keys(self.saved_names())

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
        trainable = [variable.handle.op.name for variable in self.graph.get_collection("trainable_variables")]
        return Step(
            graph_def=ignore_negative_labels(graph_def) if self.ignores_negative_labels else graph_def,
            roots=names,
            train_node=self.train_node,
            sources=self.inputs.names,
            global_step=self.global_step.handle.op.name,
            weights=weights,
            micro_batches=self.inputs.micro_batches,
            num_csx=self.inputs.num_csx,
            marks=marks_of(self.graph),
            trainable=trainable if self.inputs.micro_batches > 1 else (),
        )


class BatchSource(Protocol):
    """Gives model_fn its batch: an input pipeline, or the input receiver of an export."""

    @property
    def graph(self) -> tf.Graph | None:
        """The graph that has the batch; None: the batch can be made in any graph."""

    def batch(self) -> BatchInputs:
        """Return the batch, for the current graph."""


def call_model_fn(
    model_fn: Callable[..., Any],
    pipeline: BatchSource,
    mode: str,
    params: Any,
    settings: RunSettings,
    ignores_negative_labels: bool = False,
    sparsity: SparseChoice | None = None,
    has_initial_values: bool = True,
) -> Model:
    """Call a model_fn in the graph of its input, or in a new graph.

    Args:
        model_fn: The caller's.
        pipeline: Gives the batch.
        mode: One of ModeKeys.
        params: Passed to model_fn if it takes params.
        settings: Settings of the run, with the config for model_fn.
        ignores_negative_labels: Whether labels of -1 give no loss.
        sparsity: Weights to make sparse in TRAIN mode.
        has_initial_values: Whether variables get initial values. A plan needs none, and builds the graph faster.

    Raises:
        SettingsError: If sparsity names no weight of the model.
        ValueError: If input_fn returns labels and model_fn does not take them, or model_fn does not return a spec.
    """
    graph = pipeline.graph or new_graph(settings)
    device_fn = settings.distribution.device_fn if mode == ModeKeys.TRAIN else None  # as in tf.estimator
    values = nullcontext() if has_initial_values else variables_without_values()
    with graph.as_default(), graph.device(device_fn), values, graph_semantics():
        inputs = pipeline.batch()
        labels = None if mode == ModeKeys.PREDICT else inputs.labels  # as in TensorFlow
        own_params = params_of_micro_batch(copy.deepcopy(params), mode, inputs)
        is_cut = mode == ModeKeys.TRAIN and inputs.micro_batches > 1
        sparse_graph = SparseGraph(graph, sparsity) if sparsity is not None and mode == ModeKeys.TRAIN else None
        masked = sparse_graph.masked_gradients() if sparse_graph is not None else nullcontext()
        with marked_gradients(graph) if is_cut else nullcontext(), masked:  # masks apply to totals
            spec = call_for_spec(model_fn, inputs.features, labels, mode, own_params, settings.config)
        sparse, spec = sparse_graph.finish(spec) if sparse_graph is not None else ((), spec)
    global_step = tf.compat.v1.train.get_global_step(graph)
    return Model(graph, spec, inputs, global_step, mode, ignores_negative_labels, sparse)


def call_for_spec(model_fn: Callable[..., Any], features: Any, labels: Any, mode: str, params: Any, config: Any) -> Any:
    """Call a model_fn in the current graph; return its EstimatorSpec.

    Raises:
        ValueError: As call_model_fn.
    """
    run_log.info("Calling model_fn.")
    offered = {"mode": mode, "params": copy.deepcopy(params), "config": config}
    spec = call_with_batch(model_fn, features, labels, offered)
    for name in ("mode", "loss", "train_op", "predictions"):
        if not hasattr(spec, name):
            raise ValueError(
                f"model_fn should return an EstimatorSpec. It returned {spec!r:.200} ({type(spec).__name__})."
            )
    return spec


def params_of_micro_batch(params: Any, mode: str, inputs: BatchInputs) -> Any:
    """Return params with the batch size of a micro-batch, which is the batch that model_fn sees.

    Args:
        params: A copy of the caller's. Changes `batch_size` in it and in the mode's input section.
        mode: One of ModeKeys.
        inputs: The placeholders.
    """
    if inputs.parts == 1 or not isinstance(params, MutableMapping):
        return params
    for section in (params, params.get(INPUT_SECTIONS[mode])):
        if not isinstance(section, MutableMapping):
            continue
        size = section.get("batch_size")
        if isinstance(size, int) and size % inputs.parts == 0:
            section["batch_size"] = size // inputs.parts
    return params


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


def local_init_of(model: Model) -> Any:
    """Return the op that initializes local variables and tables: the Scaffold's op, or a new one.

    In EVAL mode it runs both, because the evaluation adds local variables for the mean loss.
    """
    own = model.scaffold.local_init_op if model.scaffold is not None else None
    if own is not None and model.mode != ModeKeys.EVAL:
        return own
    with model.graph.as_default(), graph_semantics():
        default = tf.group(tf.compat.v1.local_variables_initializer(), tf.compat.v1.tables_initializer())
        return default if own is None else tf.group(own, default)


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
    """Name of a variable among `saved_names`. A partitioned variable with one part has the name of the whole."""
    key = checkpoint_key(variable)
    return str(variable.name).split(":")[0] if isinstance(key, PartKey) else key


def op_name(graph: tf.Graph, value: Any) -> str:
    """Name of the op behind an op, a tensor or a variable of a graph."""
    element = graph.as_graph_element(value)
    return str(element.name if isinstance(element, tf.Operation) else element.op.name)
