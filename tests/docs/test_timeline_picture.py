"""The picture of a training step in README matches the current compiler."""

from __future__ import annotations

import subprocess
import sys

from tests.docs.markdown import ROOT


def test_the_picture_is_current() -> None:
    words = [sys.executable, "scripts/draw_timeline.py", "--check"]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
