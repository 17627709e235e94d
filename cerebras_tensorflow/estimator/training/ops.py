"""Ops of a training run in addition to the train op and the loss."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from cerebras_tensorflow.compiler.step import Step
from cerebras_tensorflow.estimator import summaries
from cerebras_tensorflow.estimator.model.model_call import Model, graph_semantics, local_init_of, local_initializers


@dataclass(frozen=True)
class TrainingOps:
    """Ops of a training run in addition to the train op and the loss.

    Attributes:
        summary: Merged summaries, including the loss.
        local_init: Initializes local variables and tables, which checkpoints do not hold.
        local_vars: Names of the initializers in local_init, unless it is the Scaffold's.
        roots: Tensors and ops that a run of the step may fetch.
        step: The step to compile.
    """

    summary: Any
    local_init: Any
    local_vars: frozenset[str]
    roots: list[Any]
    step: Step


def training_ops(model: Model) -> TrainingOps:
    """Add the ops of a training run to a model's graph."""
    with model.graph.as_default(), graph_semantics():
        if not summaries.are_enabled():
            model.graph.clear_collection("summaries")
        names = {tensor.op.name for tensor in model.graph.get_collection("summaries")}
        if not any(name.split("/")[-1] == "loss" for name in names):
            tf.compat.v1.summary.scalar("loss", model.spec.loss)
        own_summary = model.scaffold.summary_op if model.scaffold is not None else None
        summary = own_summary if own_summary is not None else tf.compat.v1.summary.merge_all()
    local_init = local_init_of(model)
    roots = [model.spec.loss, local_init, summary]
    return TrainingOps(summary, local_init, local_initializers(model), roots, model.step(roots))
