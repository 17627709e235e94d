"""The tutorial's model, built from the tutorial's own text, trains as it says."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
TUTORIAL = ROOT / "reference_implementations" / "TUTORIAL.md"
FILES = ("settings.py", "model.py", "run.py", "params.yaml")


def blocks() -> dict[str, str]:
    """The first code block under each heading, which names a file, as Markdown reads it.

    Such a block is indented, and goes on over blank lines until a line that is not.
    """
    found = {}
    for section in re.split(r"^## ", TUTORIAL.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]:
        name = re.match(r"[\w.]+", section)
        assert name, section
        lines = section.splitlines()
        start = next(number for number, line in enumerate(lines) if line.startswith("    "))
        block = []
        for line in lines[start:]:
            if line and not line.startswith("    "):
                break
            block.append(line[4:])
        found[name[0]] = "\n".join(block).rstrip() + "\n"
    return found


def test_the_tutorial_builds_a_model_that_trains(home: Path, tmp_path: Path) -> None:
    # A copy of what the new folder stands beside, so that the checkout stays as it is.
    for item in ("common", "gptj", "data", "__init__.py"):
        target = tmp_path / "reference_implementations" / item
        target.parent.mkdir(exist_ok=True)
        target.symlink_to(ROOT / "reference_implementations" / item)
    folder = tmp_path / "reference_implementations" / "bigram"
    folder.mkdir()
    found = blocks()
    assert set(found) == set(FILES)
    for name, content in found.items():
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
