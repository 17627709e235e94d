"""The schedules of a learning rate in params.yaml; no TensorFlow here. See schedules.py for examples."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

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
    alpha: float = 0.0  # Cosine: last rate over the first
    decay_rate: float | None = None  # Exponential: factor per `decay_steps`
    values: tuple[float, ...] = ()  # PiecewiseConstant: one more than boundaries
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

    @property
    def length(self) -> int | None:
        """Steps after which the next schedule begins; None where this one has no end."""
        if self.scheduler == "PiecewiseConstant":
            return self.boundaries[-1] if self.boundaries else None
        return self.num_steps


def read_schedules(setting: Any) -> list[Schedule]:
    """Return the schedules of a `learning_rate` key that is not a number, in order.

    Raises:
        SettingsError: If there is none, a key is missing or wrong, or a schedule before the last has no length.
    """
    parts = [setting] if isinstance(setting, dict) else list(setting)
    if not parts:
        raise SettingsError("learning_rate is an empty list; expected a number or at least one schedule")
    schedules = [check_section(part, Schedule, "schedule", "learning_rate") for part in parts]
    for schedule in schedules[:-1]:
        if not schedule.length:
            raise SettingsError(f"the {schedule.scheduler} schedule is not the last one, so it needs steps")
    return schedules
