"""Learning rates as a function of the global step, from the `learning_rate` key of params.yaml.

    learning_rate: 1e-3                                           constant
    learning_rate: {scheduler: Cosine, initial_learning_rate: 1e-3, decay_steps: 900, alpha: 0.1}
    learning_rate:                                                one after the other: warm-up, then decay
      - {scheduler: Linear, steps: 100, initial_learning_rate: 0.0, end_learning_rate: 1e-3}
      - {scheduler: Cosine, decay_steps: 900, initial_learning_rate: 1e-3, alpha: 0.1}

A schedule counts from its own first step and keeps its last value after its last step.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from reference_implementations.common.optimizers.schedule_settings import Schedule, read_schedules


def learning_rate_tensor(setting: Any, global_step: tf.Tensor) -> tf.Tensor:
    """Return the learning rate at a step.

    Args:
        setting: A number, one schedule as a mapping, or a sequence of them.
        global_step: () integer; steps finished so far.

    Returns:
        () float32.

    Raises:
        SettingsError: If a schedule lacks a key, or a schedule before the last has no length.
    """
    if isinstance(setting, (int, float)):
        return tf.constant(float(setting), tf.float32)
    schedules = read_schedules(setting)
    step = tf.cast(global_step, tf.float32)
    starts = [0]
    for schedule in schedules[:-1]:
        starts.append(starts[-1] + (schedule.length or 0))
    rate = _rate(schedules[0], step)
    for schedule, start in zip(schedules[1:], starts[1:], strict=True):
        rate = tf.where(step < float(start), rate, _rate(schedule, step - float(start)))
    return rate


def _rate(schedule: Schedule, step: tf.Tensor) -> tf.Tensor:
    """() float32; the schedule's rate `step` steps after its own start."""
    if schedule.scheduler == "Constant":
        rate = schedule.learning_rate if schedule.learning_rate is not None else schedule.initial_learning_rate
        return tf.constant(rate, tf.float32)
    if schedule.scheduler == "PiecewiseConstant":
        rate = tf.constant(schedule.values[0], tf.float32)
        for boundary, value in zip(schedule.boundaries, schedule.values[1:], strict=True):
            rate = tf.where(step < float(boundary), rate, tf.constant(value, tf.float32))
        return rate
    first = tf.constant(schedule.initial_learning_rate, tf.float32)
    done = step / float(schedule.num_steps or 1)
    if schedule.scheduler == "Exponential":
        return first * tf.pow(tf.constant(schedule.decay_rate, tf.float32), tf.maximum(done, 0.0))
    done = tf.clip_by_value(done, 0.0, 1.0)
    if schedule.scheduler == "Cosine":
        return first * ((1.0 - schedule.alpha) * 0.5 * (1.0 + tf.cos(3.141592653589793 * done)) + schedule.alpha)
    power = schedule.power if schedule.scheduler == "Polynomial" else 1.0
    return (first - schedule.end_learning_rate) * tf.pow(1.0 - done, power) + schedule.end_learning_rate
