"""scripts/pip_install.py shows pip's output only if pip fails. A stand-in for pip says what pip would."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PIP = """
import os, sys
from pathlib import Path
assert sys.argv[1] == "install" and sys.argv[-1] == "a.whl"
print("Collecting a")
print("  Downloading a.whl (1.5 kB)")
Path(os.environ["TMPDIR"], "a.whl").write_bytes(bytes(1500))
print("Installing collected packages: b, a")
print("ERROR: no room", file=sys.stderr)
sys.exit({code})
"""


@pytest.mark.parametrize("code", [0, 2])
def test_the_output_of_pip_is_shown_if_it_fails(tmp_path: Path, code: int) -> None:
    (tmp_path / "pip").mkdir()
    (tmp_path / "pip" / "__init__.py").touch()
    (tmp_path / "pip" / "__main__.py").write_text(PIP.replace("{code}", str(code)))
    done = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "pip_install.py"), "a.whl"],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == code
    assert ("ERROR: no room" in done.stderr) is bool(code)
    assert done.stdout == ""


def test_pip_install_needs_only_the_standard_library() -> None:
    # -S leaves out site-packages.
    words = [sys.executable, "-S", "-c", "import sys; sys.path.insert(0, 'scripts'); import pip_install"]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
