"""op_profiler_config, and the table of the layers that take most time."""

from __future__ import annotations

import pytest

from cerebras_tensorflow.errors import SettingsError
from cerebras_tensorflow.perf.profile import ProfilerSettings, layer_times, profiler_settings, top_table
from cerebras_tensorflow.perf.timeline import COMPUTE, LOAD, UPDATE, Span, Timeline

STEP = Timeline(
    "step 1",
    True,
    (
        Span(COMPUTE, "model/layer_1/MatMul", 0.0, 0.2),
        Span(COMPUTE, "gradients/model/layer_1/MatMul_grad/MatMul", 0.2, 0.6),
        Span(COMPUTE, "model/layer_0/MatMul", 0.6, 0.7),
        Span(UPDATE, "Adam/update_w/ResourceApplyAdam", 0.7, 1.0),
        Span(LOAD, "w", 0.0, 9.0, 5),
    ),
)


def test_a_layers_time_is_that_of_its_ops_and_their_gradients() -> None:
    times = layer_times([STEP, STEP])
    assert list(times) == ["model/layer_1", "optimizer", "model/layer_0"]
    assert times["model/layer_1"] == pytest.approx(1.2)
    assert "| 1 | model/layer_1 | 1200.000 " in " ".join(top_table([STEP, STEP]).split())


@pytest.mark.parametrize("config", [None, {}, {"start_step": -1, "end_step": -1}])
def test_the_profiler_is_off_without_steps(config: object) -> None:
    assert profiler_settings(config) is None


def test_steps_of_the_profiler_are_checked() -> None:
    assert profiler_settings({"start_step": 2, "end_step": 4, "host_activities": ["ACT-0"]}) == ProfilerSettings(2, 4)
    for config, message in [
        ({"start_step": 3, "end_step": 2}, "expected 1 <= start_step <= end_step"),
        ({"start_step": 0, "end_step": 2}, "expected 1 <= start_step"),
        ({"start": 1}, "unknown key 'start' of op_profiler_config; known: start_step"),
        ("3", "op_profiler_config is '3'"),
    ]:
        with pytest.raises(SettingsError, match=message):
            profiler_settings(config)
