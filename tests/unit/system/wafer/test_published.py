"""The model agrees with what real systems did, and the documents show the table that it makes."""

from __future__ import annotations

from pathlib import Path

import pytest

from cerebras_tensorflow.system.wafer import left_out
from cerebras_tensorflow.system.wafer.published import PublishedRun, published_runs, table

PAGE = Path(__file__).parents[4] / "docs" / "simulated-cs2.md"


@pytest.mark.parametrize("run", published_runs(), ids=lambda run: run.name)
def test_a_published_run_is_met_within_a_quarter(run: PublishedRun) -> None:
    assert 0.8 <= run.ratio <= 1.25


def test_the_page_shows_the_tables_that_the_model_makes() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert table() in text
    assert left_out.table() in text


def test_runs_of_releases_1_are_met_within_a_quarter_by_what_other_runs_tell() -> None:
    ratios = [ratio for name, (_, ratio) in left_out.left_out_ratios().items() if "R1." in name]
    assert len(ratios) == 4
    assert all(0.79 <= ratio <= 1.26 for ratio in ratios)
