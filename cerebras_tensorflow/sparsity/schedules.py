"""Schedules: how much is sparse at a step, and at which steps masks change.

Values are computed in float32, as in the published implementation (cerebras_pytorch 2.6,
cerebras.pytorch.sparse.utils).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from cerebras_tensorflow.errors import SettingsError
from cerebras_tensorflow.text import did_you_mean

Value: TypeAlias = Callable[[int, int], np.float32]
"""(step, number of earlier update steps) -> value at that step."""

_f = np.float32
_KEYS: dict[str, tuple[tuple[str, ...], dict[str, float]]] = {
    "constant": (("value",), {}),
    "linear": (("init", "slope"), {}),
    "exp": (("init", "gamma"), {"final": 1.0}),
    "power": (("init", "beta"), {}),
    "cosine": (("init", "half_period"), {"minimum": 0.0}),
    "cycling": (("values",), {}),
}
_ALIASES = {"exponential": "exp"}


@dataclass(frozen=True)
class Schedule:
    """A value that depends on the step.

    Attributes:
        kind: constant, linear, exp, power, cosine or cycling.
        values: Its numbers, in the order of the keys in the documentation.
    """

    kind: str
    values: tuple[float, ...]

    def at(self, step: int, num_updates: int = 0) -> np.float32:
        """Return the value at a step.

        Args:
            step: Number of the step; the first training step is 1.
            num_updates: Update steps before this one, for a cycling schedule.
        """
        return _FORMULAS[self.kind](self.values, step, num_updates)

    def level(self, step: int, num_updates: int = 0) -> np.float32:
        """Return the value at a step, limited to 0 to 1."""
        return np.clip(self.at(step, num_updates), _f(0), _f(1))


def _exp(values: tuple[float, ...], step: int) -> np.float32:
    init, gamma, final = map(_f, values)
    with np.errstate(over="ignore"):
        return final - (final - init) * np.exp(_f(step) * gamma)


def _cosine(values: tuple[float, ...], step: int) -> np.float32:
    init, half_period, minimum = values
    offset = (minimum + init) / 2
    return _f(init - offset) * np.cos(_f(step) * _f(math.pi / half_period)) + _f(offset)


_FORMULAS: Mapping[str, Callable[[tuple[float, ...], int, int], np.float32]] = {
    "constant": lambda values, _step, _updates: _f(values[0]),
    "linear": lambda values, step, _updates: _f(values[0]) + _f(step) * _f(values[1]),
    "exp": lambda values, step, _updates: _exp(values, step),
    "power": lambda values, step, _updates: _f(values[0]) * np.power(_f(values[1]), _f(step)),
    "cosine": lambda values, step, _updates: _cosine(values, step),
    "cycling": lambda values, _step, updates: _f(values[updates % len(values)]),
}


def read_schedule(key: str, value: Any, limit: float, is_limit_included: bool = False) -> Schedule:
    """Return the schedule of a setting.

    Args:
        key: Name of the setting, for errors.
        value: A number, a list of numbers (the next one at each update), or {"type": ..., ...}.
        limit: Most that a number may be; the least is 0.
        is_limit_included: Whether a number may equal the limit.

    Raises:
        SettingsError: If it is no schedule, or has a number out of range.
    """
    interval = f"in [0, {limit:g}{']' if is_limit_included else ')'}"

    def check(name: str, number: float) -> None:
        if not (0 <= number < limit or (is_limit_included and number == limit)):
            raise SettingsError(f"{name} is {number:g}; expected a number {interval}")

    if isinstance(value, (list, tuple)):
        value = {"type": "cycling", "values": value}
    if not isinstance(value, Mapping):
        number = _number(key, value, interval)
        check(key, number)
        return Schedule("constant", (number,))
    kind, given = _kind(key, value)
    if kind == "cycling":
        numbers = given["values"]
        if not isinstance(numbers, (list, tuple)) or not numbers:
            raise SettingsError(f"{key} is {numbers!r}; expected a list of numbers {interval}")
        cycle = tuple(_number(key, number, interval) for number in numbers)
        for number in cycle:
            check(key, number)
        return Schedule(kind, cycle)
    required, defaults = _KEYS[kind]
    values = {name: _number(f"{key}.{name}", given.get(name, defaults.get(name)), "a number")
              for name in (*required, *defaults)}  # fmt: skip
    for name in ("value", "init", "minimum"):
        if name in values:
            check(f"{key}.{name}", values[name])
    if "final" in values and not 0 <= values["final"] <= 1:
        raise SettingsError(f"{key}.final is {values['final']:g}; expected a number in [0, 1]")
    if values.get("half_period", 1) <= 0:
        raise SettingsError(f"{key}.half_period is {values['half_period']:g}; expected more than 0 steps")
    return Schedule(kind, tuple(values.values()))


def _kind(key: str, value: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return the kind of a schedule and its other keys."""
    given = dict(value)
    written = given.pop("type", None)
    if written is None:
        raise SettingsError(f"{key} has no type; expected one of {', '.join(_KEYS)}")
    kind = _ALIASES.get(str(written).lower(), str(written).lower())
    if kind not in _KEYS:
        raise SettingsError(
            f"unknown type {written!r} of {key}{did_you_mean(kind, [*_KEYS, *_ALIASES]) or '.'} "
            f"Expected one of {', '.join(_KEYS)}."
        )
    required, defaults = _KEYS[kind]
    for name in given:
        if name not in required and name not in defaults:
            known = [*required, *defaults]
            raise SettingsError(
                f"unknown key {name!r} in {key}{did_you_mean(str(name), known) or '.'} A schedule of type {kind} has "
                f"{', '.join(known)}."
            )
    missing = [name for name in required if name not in given]
    if missing:
        raise SettingsError(f"{key} lacks {missing[0]}; a schedule of type {kind} has {', '.join(required)}")
    return kind, given


def _number(key: str, value: Any, expected: str) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float, np.integer, np.floating)):
        raise SettingsError(f"{key} is {value!r}; expected {'a number ' if expected[0] == 'i' else ''}{expected}")
    if not math.isfinite(value):
        raise SettingsError(f"{key} is {value}; expected {'a number ' if expected[0] == 'i' else ''}{expected}")
    return float(value)


@dataclass(frozen=True)
class UpdateSteps:
    """The steps at which masks change: every `freq` steps in [start, stop), or the listed ones.

    Attributes:
        freq: Steps between two updates.
        start: The first update step. With 0, training starts sparse; otherwise it is dense before that step.
        stop: The step from which masks stay; None: never.
        steps: The update steps; replaces the other three.
    """

    freq: int = 1
    start: int = 0
    stop: int | None = None
    steps: tuple[int, ...] = ()

    def __contains__(self, step: int) -> bool:
        """Whether masks change after a step. Step 0 is the start of training."""
        if self.steps:
            return step in self.steps
        return step >= self.start and (step - self.start) % self.freq == 0 and (self.stop is None or step < self.stop)

    def last(self, step: int) -> int | None:
        """Return the last update step that is not after a step; None if there is none."""
        if self.steps:
            return max((one for one in self.steps if one <= step), default=None)
        end = step if self.stop is None else min(step, self.stop - 1)
        return None if end < self.start else end - (end - self.start) % self.freq

    def num_before(self, step: int) -> int:
        """Return the number of update steps before a step."""
        if self.steps:
            return sum(1 for one in self.steps if one < step)
        end = step if self.stop is None else min(step, self.stop)
        return max(0, -(-(end - self.start) // self.freq))


def read_update_steps(value: Any) -> UpdateSteps:
    """Return the update steps of a setting: None (each step), {freq, start, stop} or {steps: [...]}.

    Raises:
        SettingsError: If it is something else, or ends before it begins.
    """
    if value is None:
        return UpdateSteps()
    known = ("freq", "start", "stop", "steps")
    if not isinstance(value, Mapping):
        raise SettingsError(f"update is {value!r}; expected {{freq, start, stop}} or {{steps: [...]}}")
    for key in value:
        if key not in known:
            raise SettingsError(
                f"unknown key {key!r} in update{did_you_mean(str(key), known)} Known: {', '.join(known)}."
            )
    if "steps" in value:
        if len(value) > 1:
            raise SettingsError("update has steps and freq, start or stop; keep steps, or remove it")
        steps = value["steps"]
        if not isinstance(steps, (list, tuple)) or not steps:
            raise SettingsError(f"update.steps is {steps!r}; expected a list of steps")
        return UpdateSteps(steps=tuple(sorted({_step("update.steps", one, 0) for one in steps})))
    freq = _step("update.freq", value.get("freq", 1), 1)
    start = _step("update.start", value.get("start") or 0, 0)
    stop = None if str(value.get("stop")).lower() == "none" else _step("update.stop", value["stop"], 0)
    if stop is not None and stop <= start:
        raise SettingsError(f"update ends before it begins: start is {start}, stop is {stop}. Set stop above start.")
    return UpdateSteps(freq, start, stop)


def _step(key: str, value: Any, least: int) -> int:
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < least:
        raise SettingsError(f"{key} is {value!r}; expected a number of steps, {least} or more")
    return int(value)
