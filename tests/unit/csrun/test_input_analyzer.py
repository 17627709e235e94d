import pytest

from csrun.input_analyzer import recommend

REPORTS = [{"cpus": cpus, "samples": samples, "wall_s": 2.0} for cpus, samples in ((1, 100), (2, 190), (4, 220))]


@pytest.mark.parametrize(
    ("needed", "cpus", "workers"), [(40.0, 1, 1), (90.0, 2, 1), (95.0, 2, 1), (110.0, 1, 3), (950.0, 1, 19)]
)
def test_workers_are_as_many_as_the_needed_rate_takes_with_the_fewest_cpus(
    needed: float, cpus: int, workers: int
) -> None:
    found = recommend(REPORTS, needed)
    assert (found.cpus_per_worker, found.workers) == (cpus, workers)


def test_without_an_estimate_no_number_of_workers_is_recommended() -> None:
    found = recommend(REPORTS, None)
    assert (found.cpus_per_worker, found.workers) == (1, None)
