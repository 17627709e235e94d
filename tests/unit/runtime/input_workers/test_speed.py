"""input_workers.speed: the chief computes batches itself only if handing them over is what takes the time."""

from __future__ import annotations

import pytest

from cerebras_tensorflow.runtime.input_workers.speed import WARM_UP, WINDOW, Comparison, Verdict, Work


def verdict(
    work: Work | None, waited_s: float, used_s: float, is_ahead: bool = True, count: int = WARM_UP + WINDOW
) -> Verdict | None:
    """The verdict after some batches, each of which the consumer waits for and then uses for some time."""
    now = 0.0
    comparison = Comparison(is_ahead, lambda: now)
    result = None
    for _ in range(count):
        comparison.asked()
        now += waited_s
        result = result or comparison.got(work)
        now += used_s
    return result


def test_cheap_batches_are_computed_in_the_chief() -> None:
    found = verdict(Work(0.0005, 0.1), 0.002, 0.0005)
    assert found is not None
    assert (found.batches, found.compute_s) == (WARM_UP + WINDOW, 0.0005)
    assert found.handed_over_s == pytest.approx(0.0025, rel=0.02)


def test_a_consumer_that_also_waits_gets_the_faster_way() -> None:
    for is_ahead in (False, True):  # a batch every 100 ms; alone every 60 or 70 ms
        assert verdict(Work(0.010, 0.1), 0.040, 0.060, is_ahead)
    assert verdict(Work(0.050, 0.3), 0.040, 0.060, is_ahead=True)  # alone every 60 ms
    assert not verdict(Work(0.050, 0.3), 0.040, 0.060, is_ahead=False)  # alone every 110 ms


@pytest.mark.parametrize(
    ("work", "waited_s", "used_s"),
    [
        (None, 0.002, 0.0005),  # unknown
        (Work(0.0005, 0.1), 0.0001, 0.1),  # the consumer is slower
        (Work(0.030, 0.95), 0.032, 0.0005),  # the worker computes nearly all the time
        (Work(0.0024, 0.1), 0.002, 0.0005),  # hardly faster
    ],
)
def test_other_batches_stay_with_the_workers(work: Work | None, waited_s: float, used_s: float) -> None:
    assert verdict(work, waited_s, used_s) is None


def test_the_chief_does_not_skip_very_many_batches() -> None:
    now = [0.0]
    comparison = Comparison(True, lambda: now[0])
    late = []
    for number in range(30 * WINDOW):
        comparison.asked()
        now[0] += 0.002
        late.append(comparison.got(Work(0.0001, 0.1) if number > 17 * WINDOW else None))
    assert not any(late)
