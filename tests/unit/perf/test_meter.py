"""The meter counts training time only."""

from __future__ import annotations

import pytest

from cerebras_tensorflow.perf.meter import Meter


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0
        self.waited_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def test_pauses_do_not_count_and_reset_the_recent_speed() -> None:
    clock = Clock()
    meter = Meter(lambda: clock.waited_s, clock)
    meter.batch_size = 4
    assert meter.elapsed_s == 0 and meter.overall_speed().samples_per_s == 0
    meter.start()
    clock.now_s += 2
    meter.count_step()
    assert meter.recent_speed().samples_per_s == pytest.approx(2)
    with meter.paused():
        clock.now_s += 50
    clock.now_s += 1
    meter.count_step()
    assert meter.recent_speed().steps_per_s == pytest.approx(1)
    assert meter.elapsed_s == pytest.approx(3)
    assert meter.overall_speed().samples_per_s == pytest.approx(8 / 3)


def test_the_wait_for_the_first_batch_does_not_count_as_input_wait() -> None:
    clock = Clock()
    meter = Meter(lambda: clock.waited_s, clock)
    meter.start()
    clock.now_s, clock.waited_s = 105.0, 5.0
    meter.count_step()
    assert meter.input_wait_share == 0
    clock.now_s, clock.waited_s = 110.0, 7.0
    meter.count_step()
    assert meter.input_wait_share == pytest.approx(0.2)
