"""Every long part of a run has a progress line, and its amounts end at the total."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from cerebras_tensorflow import CerebrasEstimator, CSConfig, CSRunConfig
from cerebras_tensorflow.progress import Progress
from tests.unit.estimator.tiny import input_fn, model_fn


@pytest.fixture
def last_lines(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Title of each progress -> its last line, without the parts that depend on time."""
    lines: dict[str, str] = {}
    leave = Progress.__exit__

    def note_and_leave(self: Progress, *error: Any) -> None:
        title, _, line = self.text(1.0, 0).partition(": ")
        lines[title] = re.sub(r"  \S+( [kMG]?B)?/s  .*|1.0 s", "", line.strip())
        leave(self, *error)

    monkeypatch.setattr(Progress, "__exit__", note_and_leave)
    return lines


def test_the_progress_lines_of_a_streamed_run_end_at_their_totals(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, last_lines: dict[str, str]
) -> None:
    monkeypatch.setenv("CEREBRAS_EXECUTION_MODE", "weight_streaming")
    config = CSRunConfig(cs_config=CSConfig(min_stream_bytes=100, weight_store="file"))
    estimator = CerebrasEstimator(model_fn, str(tmp_path), config=config, params={})
    estimator.train(input_fn(), max_steps=5)
    assert last_lines == {
        "Building the model": " so far",
        "Compiling": " so far",
        "Initializing weights": "100 %  3.9 kB of 3.9 kB",
        "Loading weights": "100 %  3.9 kB of 3.9 kB",
        "First step": "100 %  9.0 kB of 9.0 kB",
        "Training": "100 %  4 of 4 steps",
        "Saving checkpoint": "100 %  3.9 kB of 3.9 kB",
    }
    last_lines.clear()
    estimator.train(input_fn(), max_steps=6)
    estimator.evaluate(input_fn(), steps=3)
    assert last_lines["Checking the checkpoint"] == " so far"
    assert last_lines["Evaluating"] == "100 %  3 of 3 batches"
