"""Loss scaling: multiply the loss, and divide its gradients again, so that small gradients survive 16-bit floats.

Dynamic scaling (Micikevicius et al., arXiv 1710.03740, Section 3.2, with the tolerance of NVIDIA's OpenSeq2Seq) finds
the factor by itself. A step whose gradients overflow changes no weight. Frequent overflows halve the factor; many good
steps in a row double it. The names of its state are those of the public Model Zoo's checkpoints:
current_loss_scale, good_steps, steps_since_rescale, overflows_since_rescale.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from reference_implementations.common.sections import OptimizerSettings


class LossScale:
    """The loss-scaling factor of one training graph.

    Attributes:
        value: () float32.
        is_dynamic: Whether the factor changes and steps may be skipped.
    """

    def __init__(self, settings: OptimizerSettings) -> None:
        self.is_dynamic = isinstance(settings.loss_scaling_factor, str)
        self._settings = settings
        if self.is_dynamic:
            self._scale = _state("current_loss_scale", settings.initial_loss_scale, tf.float32)
            self._good = _state("good_steps", 0, tf.int64)
            self._steps = _state("steps_since_rescale", 0, tf.int64)
            self._overflows = _state("overflows_since_rescale", 0, tf.int64)
            self.value = tf.identity(self._scale)
        else:
            self.value = tf.constant(settings.loss_scaling_factor, tf.float32)

    def scaled(self, loss: tf.Tensor) -> tf.Tensor:
        """Return the scaled loss, whose gradients `unscaled` takes."""
        return loss if self._is_one else loss * tf.cast(self.value, loss.dtype)

    def unscaled(self, gradients: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Return the gradients of the unscaled loss."""
        if self._is_one:
            return list(gradients)
        inverse = 1.0 / self.value
        return [gradient * tf.cast(inverse, gradient.dtype) for gradient in gradients]

    def update(self, is_finite: tf.Tensor) -> tf.Operation:
        """Return the op that counts a step and changes the factor when necessary.

        Args:
            is_finite: () bool, whether the step's gradients are finite.
        """
        settings, zero = self._settings, tf.constant(0, tf.int64)
        steps = self._steps + 1
        overflows = self._overflows + tf.cast(tf.logical_not(is_finite), tf.int64)
        good = tf.where(is_finite, self._good + 1, zero)
        share = tf.cast(overflows, tf.float32) / tf.cast(steps, tf.float32)
        falls = tf.logical_and(tf.logical_not(is_finite), share > settings.overflow_tolerance)
        rises = good >= settings.steps_per_increase
        scale = tf.where(falls, self.value * 0.5, tf.where(rises, self.value * 2.0, self.value))
        scale = tf.clip_by_value(scale, settings.min_loss_scale, settings.max_loss_scale)
        is_new = tf.logical_or(falls, rises)
        return tf.group(
            self._scale.assign(scale, read_value=False),
            self._good.assign(tf.where(is_new, zero, good), read_value=False),
            self._steps.assign(tf.where(is_new, zero, steps), read_value=False),
            self._overflows.assign(tf.where(is_new, zero, overflows), read_value=False),
        )

    @property
    def _is_one(self) -> bool:
        return not self.is_dynamic and self._settings.loss_scaling_factor == 1.0


def all_finite(gradients: Sequence[tf.Tensor]) -> tf.Tensor:
    """() bool: whether the global norm of the gradients is finite."""
    return tf.math.is_finite(tf.linalg.global_norm(list(gradients)))


def _state(name: str, value: float, dtype: Any) -> tf.Variable:
    return tf.compat.v1.get_variable(
        name,
        [],
        dtype,
        tf.compat.v1.constant_initializer(value),
        trainable=False,
        use_resource=True,
    )
