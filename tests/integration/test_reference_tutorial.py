"""The tutorial's model, built from the tutorial's own text, trains as it says."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.docs.markdown import blocks

ROOT = Path(__file__).parents[2]
TUTORIAL = ROOT / "reference_implementations" / "TUTORIAL.md"
FILES = ("settings.py", "model.py", "run.py", "params.yaml")


def files() -> dict[str, str]:
    """The files that the tutorial has the reader save."""
    return {block.options["file"]: block.text for block in blocks(TUTORIAL) if "file" in block.options}


def test_the_tutorial_builds_a_model_that_trains(home: Path, tmp_path: Path) -> None:
    # Work in a folder of links to keep the checkout unchanged.
    for item in ("common", "gptj", "data", "__init__.py"):
        target = tmp_path / "reference_implementations" / item
        target.parent.mkdir(exist_ok=True)
        target.symlink_to(ROOT / "reference_implementations" / item)
    folder = tmp_path / "reference_implementations" / "bigram"
    folder.mkdir()
    assert set(files()) == set(FILES)
    for name, content in files().items():
        (folder / name).write_text(content)
    environ = {**os.environ, "CEREBRAS_EXECUTION_MODE": "weight_streaming", "TF_CPP_MIN_LOG_LEVEL": "3"}
    environ["PYTHONPATH"] = os.pathsep.join([str(tmp_path), str(ROOT)])
    result = subprocess.run(
        [sys.executable, "run.py", "--params", "params.yaml", "--mode", "train_and_eval"],
        cwd=folder,
        env=environ,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert result.returncode == 0, result.stderr
    loss = re.search(r"Loss for final step: ([0-9]+\.[0-9]+)", result.stdout + result.stderr)
    assert loss, result.stderr
    assert 2.3 < float(loss[1]) < 2.8
