"""Makes the op of one training step from the `optimizer` section."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import tensorflow as tf

from reference_implementations.common.optimizers.adafactor import AdafactorOptimizer
from reference_implementations.common.optimizers.adamw import AdamWOptimizer
from reference_implementations.common.optimizers.loss_scale import LossScale, all_finite
from reference_implementations.common.optimizers.schedules import learning_rate_tensor
from reference_implementations.common.sections import OptimizerSettings

Update = Callable[[Sequence[tf.Tensor]], tf.Operation]


def training_step(loss: tf.Tensor, settings: OptimizerSettings) -> tf.Operation:
    """Return the op that updates every trainable variable once and counts the global step.

    Gradients are made dense first. An embedding row that a batch does not use then has gradient zero in all
    optimizers, as on the wafer. With `grad_accum_steps` the mean gradient of that many runs of the op makes one
    update, and the global step counts updates. The global step also counts steps that dynamic loss scaling skips,
    because a resumed run finds its place in the data by it.

    Args:
        loss: () float32.
        settings: The optimizer.
    """
    global_step = tf.compat.v1.train.get_or_create_global_step()
    learning_rate = learning_rate_tensor(settings.learning_rate, global_step)
    optimizer = make_optimizer(settings, learning_rate)
    loss_scale = LossScale(settings)
    gradients, variables = _dense_gradients(loss_scale.scaled(loss))
    gradients = loss_scale.unscaled(gradients)
    tf.compat.v1.summary.scalar("train/lr", learning_rate)
    if loss_scale.is_dynamic:
        tf.compat.v1.summary.scalar("train/loss_scale", loss_scale.value)
    if settings.log_summaries:  # reads every gradient once more
        tf.compat.v1.summary.scalar("train/unclipped_grad_norm", tf.linalg.global_norm(gradients))

    def update(values: Sequence[tf.Tensor]) -> tf.Operation:
        pairs = zip(_clipped(values, settings), variables, strict=True)
        return optimizer.apply_gradients(pairs, global_step=global_step)

    if settings.grad_accum_steps > 1:
        return _accumulated(gradients, variables, settings.grad_accum_steps, loss_scale, update)
    if not loss_scale.is_dynamic:
        return update(gradients)
    is_finite = all_finite(gradients)
    step = tf.cond(
        is_finite,
        lambda: tf.group(update(gradients)),
        lambda: tf.group(global_step.assign_add(1, read_value=False)),
    )
    return tf.group(step, loss_scale.update(is_finite))


def _accumulated(
    gradients: Sequence[tf.Tensor],
    variables: Sequence[tf.Variable],
    num_steps: int,
    loss_scale: LossScale,
    update: Update,
) -> tf.Operation:
    """Return the op that adds one run's gradients and updates after `num_steps` runs; overflowing runs add nothing.

    The sums and their counter have the names of the public Model Zoo's checkpoints.
    """
    counter = _untrained("accum_step_counter", [], tf.int32)
    others = []
    if loss_scale.is_dynamic:
        is_finite = all_finite(gradients)
        gradients = [tf.where(is_finite, gradient, tf.zeros_like(gradient)) for gradient in gradients]
        others.append(loss_scale.update(is_finite))
    totals = [
        _untrained(f"{variable.op.name}_grad_accum_{number}", variable.shape, variable.dtype)
        for number, variable in enumerate(variables)
    ]
    sums = [total.assign_add(gradient) for total, gradient in zip(totals, gradients, strict=True)]
    count = counter + 1

    def finish() -> tf.Operation:
        step = update([value / num_steps for value in sums])
        with tf.control_dependencies([step]):
            return tf.group(*[total.assign(tf.zeros_like(total), read_value=False) for total in totals])

    step = tf.cond(tf.equal(count, num_steps), finish, lambda: tf.group(*[tf.identity(value).op for value in sums]))
    with tf.control_dependencies([count]):
        counted = counter.assign(count % num_steps, read_value=False)
    return tf.group(step, counted, *others)


def _untrained(name: str, shape: tf.TensorShape | list[int], dtype: tf.DType) -> tf.Variable:
    """Return a variable of zeros under its full name, whatever the current scope."""
    with tf.compat.v1.variable_scope(tf.compat.v1.VariableScope(reuse=False), auxiliary_name_scope=False):
        return tf.compat.v1.get_variable(
            name, shape, dtype, tf.compat.v1.zeros_initializer(), trainable=False, use_resource=True
        )


def _clipped(gradients: Sequence[tf.Tensor], settings: OptimizerSettings) -> list[tf.Tensor]:
    if settings.max_gradient_norm is not None:
        return list(tf.clip_by_global_norm(list(gradients), settings.max_gradient_norm)[0])
    if settings.max_gradient_value is not None:
        limit = settings.max_gradient_value
        return [tf.clip_by_value(gradient, -limit, limit) for gradient in gradients]
    return list(gradients)


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
