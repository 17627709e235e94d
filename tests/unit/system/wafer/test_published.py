"""The model agrees with what real systems did, and the documents show the table that it makes."""

from __future__ import annotations

from pathlib import Path

import pytest

from cerebras_tensorflow.system import facts
from cerebras_tensorflow.system.wafer import left_out
from cerebras_tensorflow.system.wafer.published import RUNS_1, RUNS_2, PublishedRun, published_runs, table

PAGE = Path(__file__).parents[4] / "docs" / "simulated-cs2.md"


@pytest.mark.parametrize("run", published_runs(), ids=lambda run: run.name)
def test_a_published_run_is_met_within_a_quarter(run: PublishedRun) -> None:
    assert 0.8 <= run.ratio <= 1.25


def test_the_page_shows_the_tables_that_the_model_makes() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert table() in text
    assert left_out.table() in text


def test_the_page_claims_no_more_than_the_tables_show() -> None:
    text = " ".join(PAGE.read_text(encoding="utf-8").split())
    assert all(run.use.startswith("fits ") for run in published_runs())
    assert "every row fits a figure, so no row is an independent check" in text
    kernel_runs = [run for run in published_runs() if "kernels" in run.use]
    worst = max(abs(run.ratio - 1) for run in kernel_runs)
    assert f"describe {len(kernel_runs)} runs within {100 * worst:.0f} %" in text.replace("six", "6")
    assert f"4 bytes on the fabric | {facts.SUM_BYTES.status}:" in text


def test_a_figure_fitted_on_recalled_runs_says_so() -> None:
    for runs, fact in ((RUNS_1, facts.KERNEL_EFFICIENCY_1), (RUNS_2, facts.KERNEL_EFFICIENCY_2)):
        assert ("recalled" in fact.source) == any("recalled" in run.source for run in runs)


def test_runs_are_met_by_what_the_other_runs_of_their_releases_tell() -> None:
    ratios = [ratio for _, ratio in left_out.left_out_ratios().values()]
    assert len(ratios) == 6
    assert all(0.8 <= ratio <= 1.25 for ratio in ratios)


def test_the_efficiencies_are_those_that_the_runs_fit() -> None:
    for runs, fact in ((RUNS_1, facts.KERNEL_EFFICIENCY_1), (RUNS_2, facts.KERNEL_EFFICIENCY_2)):
        assert left_out.fitted_efficiency(runs) == pytest.approx(fact.value, abs=1e-3)
        assert fact.low is not None and fact.high is not None
        assert all(fact.low < left_out.fitted_efficiency([run]) < fact.high for run in runs)
