"""Learning rates as a function of the global step, from the `learning_rate` key of params.yaml.

    learning_rate: 1e-3                                           constant
    learning_rate: {scheduler: Cosine, initial_learning_rate: 1e-3, decay_steps: 900, alpha: 0.1}
    learning_rate:                                                one after the other: warm-up, then decay
      - {scheduler: Linear, steps: 100, initial_learning_rate: 0.0, end_learning_rate: 1e-3}
      - {scheduler: Cosine, decay_steps: 900, initial_learning_rate: 1e-3, alpha: 0.1}

A schedule counts from its own first step and holds its last value once its steps are over.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import tensorflow as tf

from cerebras_tensorflow.errors import SettingsError
from reference_implementations.common.settings import check_section


@dataclass(frozen=True)
class Schedule:
    """One schedule; which keys it needs depends on `scheduler`."""

    scheduler: Literal["Constant", "Linear", "Cosine", "Polynomial", "Exponential", "PiecewiseConstant"]
    learning_rate: float | None = None  # Constant
    initial_learning_rate: float | None = None
    end_learning_rate: float = 0.0  # Linear, Polynomial
    steps: int | None = None  # length; also under the name decay_steps
    decay_steps: int | None = None
    power: float = 1.0  # Polynomial
    alpha: float = 0.0  # Cosine: last rate as a part of the first
    decay_rate: float | None = None  # Exponential: factor per `decay_steps`
    values: tuple[float, ...] = ()  # PiecewiseConstant, one more than boundaries
    boundaries: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.scheduler == "Constant":
            if self.learning_rate is None and self.initial_learning_rate is None:
                raise SettingsError("a Constant schedule needs learning_rate")
        elif self.scheduler == "PiecewiseConstant":
            if len(self.values) != len(self.boundaries) + 1:
                raise SettingsError(
                    f"a PiecewiseConstant schedule needs one value more than boundaries, found {len(self.values)} "
                    f"values and {len(self.boundaries)} boundaries"
                )
        else:
            if self.initial_learning_rate is None:
                raise SettingsError(f"a {self.scheduler} schedule needs initial_learning_rate")
            if not self.num_steps:
                raise SettingsError(f"a {self.scheduler} schedule needs steps (or decay_steps) of at least 1")
            if self.scheduler == "Exponential" and self.decay_rate is None:
                raise SettingsError("an Exponential schedule needs decay_rate")

    @property
    def num_steps(self) -> int | None:
        """Steps that the schedule takes; None where it has no end."""
        return self.steps if self.steps is not None else self.decay_steps


def learning_rate_tensor(setting: Any, global_step: tf.Tensor) -> tf.Tensor:
    """Return the learning rate at a step.

    Args:
        setting: A number, one schedule as a mapping, or a sequence of them.
        global_step: () integer; steps done so far.

    Returns:
        () float32.

    Raises:
        SettingsError: If a schedule lacks a key, or one that is not the last has no length.
    """
    if isinstance(setting, (int, float)):
        return tf.constant(float(setting), tf.float32)
    parts = [setting] if isinstance(setting, dict) else list(setting)
    if not parts:
        raise SettingsError("learning_rate is an empty list; expected a number or at least one schedule")
    schedules = [check_section(part, Schedule, "learning_rate", "optimizer") for part in parts]
    step = tf.cast(global_step, tf.float32)
    starts = [0]
    for schedule in schedules[:-1]:
        length = schedule.boundaries[-1] if schedule.scheduler == "PiecewiseConstant" else schedule.num_steps
        if not length:
            raise SettingsError(f"the {schedule.scheduler} schedule is not the last one, so it needs steps")
        starts.append(starts[-1] + length)
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
