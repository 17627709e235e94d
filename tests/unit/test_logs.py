"""A plain script shows the log lines of a run unless it configures logging."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import sys
{first}
from tests.unit.estimator.tiny import estimator, input_fn
estimator(sys.argv[1], log_step_count_steps=1).train(input_fn(), max_steps=2)
"""


@pytest.mark.parametrize(
    ("first", "is_shown"),
    [
        ("", True),
        ("import tensorflow as tf; tf.compat.v1.logging.set_verbosity(tf.compat.v1.logging.ERROR)", False),
        ("import logging; logging.basicConfig(level=logging.ERROR)", False),
    ],
)
def test_log_lines_are_shown_unless_the_script_disables_them(
    first: str, is_shown: bool, home: Path, tmp_path: Path, warm_python: list[str]
) -> None:
    script = tmp_path / "run.py"
    script.write_text(SCRIPT.format(first=first))
    command = [*([sys.executable] if is_shown else warm_python), str(script), str(tmp_path / "model")]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    assert ("global step 2: loss = " in output) is is_shown
    assert ("Loss for final step: " in output) is is_shown
    assert ("Saving checkpoints for 2 into" in output) is is_shown
