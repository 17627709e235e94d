"""The profile of some steps: the time of each layer, and the ten that take most."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from cerebras_tensorflow.errors import SettingsError
from cerebras_tensorflow.graph.scopes import layer_of
from cerebras_tensorflow.perf.timeline import COMPUTE, UPDATE, Timeline

_OFF = -1
_KEYS = ("start_step", "end_step", "host_activities")
_TOP = 10


@dataclass(frozen=True)
class ProfilerSettings:
    """Steps to profile, counted from the first step of the run, which is 1; both ends are profiled.

    Attributes:
        start_step, end_step: First and last step.
    """

    start_step: int
    end_step: int


def profiler_settings(config: object) -> ProfilerSettings | None:
    """Return the settings of an `op_profiler_config`; None if there is none or it is off (-1).

    Its published keys are start_step, end_step and host_activities; the last has no effect, since one host does all.

    Raises:
        SettingsError: If a key is unknown, or the steps are not numbers with 1 <= start_step <= end_step.
    """
    if config is None:
        return None
    if not isinstance(config, dict):
        raise SettingsError(f"op_profiler_config is {config!r}: expected keys {', '.join(_KEYS)}")
    for key in config:
        if key not in _KEYS:
            raise SettingsError(f"unknown key {key!r} of op_profiler_config; known: {', '.join(_KEYS)}")
    start, end = config.get("start_step", _OFF), config.get("end_step", _OFF)
    if start == _OFF and end == _OFF:
        return None
    if not all(isinstance(step, int) and not isinstance(step, bool) for step in (start, end)) or not 1 <= start <= end:
        raise SettingsError(
            f"op_profiler_config has start_step {start!r} and end_step {end!r}: expected 1 <= start_step <= end_step, "
            "counted from the first step of the run; -1 for both switches the profiler off"
        )
    return ProfilerSettings(start, end)


def layer_times(timelines: Sequence[Timeline]) -> dict[str, float]:
    """Return the time of each layer in all steps [s], the longest first. Updates of weights are one layer."""
    times: dict[str, float] = defaultdict(float)
    for timeline in timelines:
        for span in timeline.spans:
            if span.stream in (COMPUTE, UPDATE):
                name = "optimizer" if span.stream == UPDATE else layer_of(span.name) or "other"
                times[name] += span.end_s - span.begin_s
    return dict(sorted(times.items(), key=lambda item: -item[1]))


def top_table(timelines: Sequence[Timeline]) -> str:
    """Return the ten layers that take most time, as the original's table: name, milliseconds, share."""
    times = layer_times(timelines)
    total = sum(times.values()) or 1.0
    rows = [
        (number, name, f"{1000 * seconds:.3f}", f"{seconds / total:.2%}")
        for number, (name, seconds) in enumerate(list(times.items())[:_TOP], 1)
    ]
    titles = ("", "LAYER", "TIME (in ms)", "% TIME")
    from tabulate import tabulate  # here, because it is slow and few runs are profiled

    return tabulate(rows, titles, tablefmt="psql", disable_numparse=True)
