"""The `optimizer` section -> the op of one training step."""

from __future__ import annotations

import tensorflow as tf

from reference_implementations.common.adafactor import AdafactorOptimizer
from reference_implementations.common.adamw import AdamWOptimizer
from reference_implementations.common.schedules import learning_rate_tensor
from reference_implementations.common.sections import OptimizerSettings


def training_step(loss: tf.Tensor, settings: OptimizerSettings) -> tf.Operation:
    """Return the op that updates every trainable variable once and counts the global step.

    Gradients are made dense first: all optimizers then treat an embedding row that a batch does not touch as having
    gradient zero, as the wafer does.

    Args:
        loss: () float32.
        settings: What to minimize it with.
    """
    global_step = tf.compat.v1.train.get_or_create_global_step()
    learning_rate = learning_rate_tensor(settings.learning_rate, global_step)
    optimizer = make_optimizer(settings, learning_rate)
    gradients, variables = _dense_gradients(loss)
    if settings.max_gradient_norm is not None:
        gradients, _ = tf.clip_by_global_norm(gradients, settings.max_gradient_norm)
    elif settings.max_gradient_value is not None:
        limit = settings.max_gradient_value
        gradients = [tf.clip_by_value(gradient, -limit, limit) for gradient in gradients]
    if settings.log_summaries:
        tf.compat.v1.summary.scalar("train/lr", learning_rate)
    return optimizer.apply_gradients(zip(gradients, variables, strict=True), global_step=global_step)


def make_optimizer(settings: OptimizerSettings, learning_rate: tf.Tensor) -> tf.compat.v1.train.Optimizer:
    """Return the optimizer that the settings name."""
    if settings.optimizer_type == "sgd":
        return tf.compat.v1.train.GradientDescentOptimizer(learning_rate)
    if settings.optimizer_type == "momentum":
        return tf.compat.v1.train.MomentumOptimizer(
            learning_rate, settings.momentum, use_nesterov=settings.use_nesterov
        )
    if settings.optimizer_type == "adam":
        return tf.compat.v1.train.AdamOptimizer(
            learning_rate, beta1=settings.beta1, beta2=settings.beta2, epsilon=settings.epsilon
        )
    if settings.optimizer_type == "adafactor":
        return AdafactorOptimizer(learning_rate, tf.compat.v1.train.get_or_create_global_step())
    is_lamb = settings.optimizer_type == "lamb"
    return AdamWOptimizer(
        learning_rate,
        beta1=settings.beta1,
        beta2=settings.beta2,
        epsilon=settings.epsilon,
        weight_decay_rate=settings.weight_decay_rate,
        exclude_from_weight_decay=settings.exclude_from_weight_decay,
        use_bias_correction=settings.use_bias_correction,
        use_trust_ratio=is_lamb,
        name="LAMB" if is_lamb else "AdamW",
    )


def _dense_gradients(loss: tf.Tensor) -> tuple[list[tf.Tensor], list[tf.Variable]]:
    variables = tf.compat.v1.trainable_variables()
    gradients, used = [], []
    for gradient, variable in zip(tf.gradients(loss, variables), variables, strict=True):
        if gradient is None:
            continue
        if isinstance(gradient, tf.IndexedSlices):
            gradient = tf.math.unsorted_segment_sum(gradient.values, gradient.indices, variable.shape[0])
        gradients.append(tf.cast(gradient, variable.dtype))
        used.append(variable)
    return gradients, used
