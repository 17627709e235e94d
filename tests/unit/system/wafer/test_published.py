"""The model agrees with what real systems did, and the documents show the table that it makes."""

from __future__ import annotations

from pathlib import Path

import pytest

from cerebras_tensorflow.system.wafer.published import PublishedRun, published_runs, table

PAGE = Path(__file__).parents[4] / "docs" / "simulated-cs2.md"


@pytest.mark.parametrize("run", published_runs(), ids=lambda run: run.name)
def test_a_published_run_is_met_within_a_quarter(run: PublishedRun) -> None:
    assert 0.8 <= run.ratio <= 1.25


def test_the_page_shows_the_table_that_the_model_makes() -> None:
    assert table() in PAGE.read_text(encoding="utf-8")
