"""A fully connected classifier as a model_fn.

    # B batch, I pixels of an image, O outputs of a layer

Variables: km_disable_scope_1/dense, km_disable_scope_3/dense_1, km_disable_scope_4/dense_2, and so on, each with kernel
(I, O) and bias (O,): the names of the public Model Zoo's checkpoints.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from cerebras_tensorflow import CSEstimatorSpec
from reference_implementations.common.layers.basic import activation, dropout, numbered, variable, zeros
from reference_implementations.common.optimizers.make import training_step
from reference_implementations.common.sections import OptimizerSettings
from reference_implementations.common.settings import check_section
from reference_implementations.fc_mnist.settings import FcMnistSettings


def model_fn(features: tf.Tensor, labels: tf.Tensor, mode: str, params: Mapping[str, Any]) -> Any:
    """Return the CSEstimatorSpec of one step.

    Args:
        features: (B, I) float32 pixels.
        labels: (B,) int32 classes.
        mode: 'train', 'eval' or 'infer'.
        params: Sections `model` and `optimizer`.
    """
    settings = check_section(params["model"], FcMnistSettings, "model", "params")
    logits_BO = fc_logits(features, settings, is_training=mode == "train")
    classes_B = tf.argmax(logits_BO, axis=-1)
    if mode == "infer":
        return CSEstimatorSpec(mode, predictions={"class": classes_B})
    losses_B = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=tf.cast(logits_BO, tf.float32))
    loss = tf.reduce_mean(losses_B)
    if mode == "eval":
        metrics = {"eval/accuracy": tf.compat.v1.metrics.accuracy(labels, classes_B)}
        return CSEstimatorSpec(mode, loss=loss, eval_metric_ops=metrics)
    optimizer = check_section(params["optimizer"], OptimizerSettings, "optimizer", "params")
    tf.compat.v1.summary.scalar("train/loss", loss)
    return CSEstimatorSpec(mode, loss=loss, train_op=training_step(loss, optimizer))


def fc_logits(pixels_BI: tf.Tensor, settings: FcMnistSettings, is_training: bool) -> tf.Tensor:
    """(B, I) pixels -> (B, classes) logits of the compute type."""
    x_BO = tf.cast(pixels_BI, tf.bfloat16 if settings.mixed_precision else tf.float32)
    for index, size in enumerate(settings.hidden_sizes):
        x_BO = activation(settings.activation_fn, _dense(index, x_BO, size))
        x_BO = dropout(x_BO, settings.dropout_rate, is_training)
    return _dense(len(settings.hidden_sizes), x_BO, settings.num_classes)


def _dense(index: int, x_BI: tf.Tensor, num_outputs: int) -> tf.Tensor:
    # The original opens more such scopes than it has layers: the layers are in scopes 1, 3, 4, ...
    scope = f"km_disable_scope_{index + 2 if index else 1}/{numbered('dense', index)}"
    with tf.compat.v1.variable_scope(scope):
        kernel = variable("kernel", [int(x_BI.shape[-1]), num_outputs], tf.compat.v1.glorot_uniform_initializer())
        return tf.nn.bias_add(
            tf.matmul(x_BI, tf.cast(kernel, x_BI.dtype)), tf.cast(variable("bias", [num_outputs], zeros()), x_BI.dtype)
        )
