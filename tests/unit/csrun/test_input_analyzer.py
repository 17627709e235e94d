from csrun.input_analyzer import recommend

REPORT = {"batches": 10, "samples": 100, "wall_s": 2.0, "cpu_s": 5.0}


def test_workers_are_as_many_as_the_needed_rate_takes() -> None:
    found = recommend(REPORT, 120.0)
    assert (found.samples_per_s, found.cpus_per_worker, found.workers) == (50.0, 3, 3)


def test_without_an_estimate_nothing_is_recommended() -> None:
    assert recommend(REPORT, None).workers is None
