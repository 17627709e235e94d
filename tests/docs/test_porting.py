"""The porting page names successors of tf.contrib; all of them exist."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.docs.markdown import ROOT

PAGE = (ROOT / "docs" / "porting.md").read_text(encoding="utf-8")
ROWS = re.findall(r"^\| `tf\.contrib[^|]*\|([^|]*)\|$", PAGE, flags=re.MULTILINE)
SUCCESSORS = sorted({name for row in ROWS for name in re.findall(r"`(tf\.[\w.]+)", row)})


def test_the_successors_exist_in_a_script_with_keras_2(home: Path) -> None:
    assert len(SUCCESSORS) > 10
    script = "import cerebras_tensorflow\nimport tensorflow as tf\n" + "\n".join(SUCCESSORS)
    environ = {**os.environ, "TF_USE_LEGACY_KERAS": "1"}
    done = subprocess.run([sys.executable, "-c", script], env=environ, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]
