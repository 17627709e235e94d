import pytest

from csrun.input_analyzer import recommend

REPORTS = [{"cpus": cpus, "samples": samples, "wall_s": 2.0} for cpus, samples in ((1, 100), (2, 190), (4, 220))]


@pytest.mark.parametrize(
    ("needed", "cpus", "workers"), [(40.0, 1, 1), (90.0, 2, 1), (95.0, 2, 1), (110.0, 1, 3), (950.0, 1, 19)]
)
def test_the_recommendation_needs_the_fewest_cpus_for_the_rate(needed: float, cpus: int, workers: int) -> None:
    recommendation = recommend(REPORTS, needed)
    assert (recommendation.cpus_per_worker, recommendation.workers) == (cpus, workers)


def test_without_an_estimate_no_number_of_workers_is_recommended() -> None:
    recommendation = recommend(REPORTS, None)
    assert (recommendation.cpus_per_worker, recommendation.workers) == (1, None)
