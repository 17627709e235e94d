"""Ops of a training run in addition to the train op and the loss."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from cerebras_tensorflow.compiler.step import Step
from cerebras_tensorflow.estimator import summaries
from cerebras_tensorflow.estimator.model.default_curves import add_default_curves
from cerebras_tensorflow.estimator.model.graph_settings import graph_semantics
from cerebras_tensorflow.estimator.model.model_call import Model, local_init_of, local_initializers

STEP_ROOTS = "cs_step_roots"
"""Collection of names of tensors and ops that hooks run with each step. The step is compiled with them."""


@dataclass(frozen=True)
class TrainingOps:
    """Ops of a training run in addition to the train op and the loss.

    Attributes:
        summary: Merged summaries, including the loss.
        local_init: Initializes local variables and tables, which checkpoints do not hold.
        local_vars: Names of the initializers in local_init, unless it is the Scaffold's.
        batch_size: Number of samples of a batch that the step reads itself; None: the batch is fed.
        roots: Tensors and ops that a run of the step may fetch.
        step: The step to compile.
    """

    summary: Any
    local_init: Any
    local_vars: frozenset[str]
    batch_size: Any
    roots: list[Any]
    step: Step


def add_loss_summary(graph: tf.Graph, loss: Any) -> None:
    """Add the summary of the loss to the current graph, unless model_fn did. Drop its summaries if they are off."""
    if not summaries.are_enabled():
        graph.clear_collection("summaries")
    names = {tensor.op.name for tensor in graph.get_collection("summaries")}
    if not any(name.split("/")[-1] == "loss" for name in names):
        tf.compat.v1.summary.scalar("loss", loss)


def training_ops(model: Model, has_default_curves: bool = True) -> TrainingOps:
    """Add the ops of a training run to a model's graph.

    Args:
        model: The model.
        has_default_curves: Whether to add summaries of the learning rate and the loss scale; not for tf.estimator.
    """
    with model.graph.as_default(), graph_semantics():
        add_loss_summary(model.graph, model.spec.loss)
        if has_default_curves and summaries.are_enabled() and model.spec.train_op is not None:
            add_default_curves(model.graph, model.spec.train_op)
        own_summary = model.scaffold.summary_op if model.scaffold is not None else None
        summary = own_summary if own_summary is not None else tf.compat.v1.summary.merge_all()
        batch_size = None if model.inputs.names else _batch_size(model.inputs.tensors)
    local_init = local_init_of(model)
    of_hooks = model.graph.get_collection(STEP_ROOTS)
    roots = [model.spec.loss, local_init, summary, *of_hooks, *([] if batch_size is None else [batch_size])]
    return TrainingOps(summary, local_init, local_initializers(model), batch_size, roots, model.step(roots))


def _batch_size(tensors: Sequence[Any]) -> Any:
    """Return a tensor with dim 0 of the first tensor that has one."""
    for tensor in tensors:
        if tensor.shape.rank:
            return tf.shape(tensor)[0]
    return tf.constant(1)
