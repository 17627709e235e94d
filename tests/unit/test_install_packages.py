"""scripts/install_packages.py installs with uv, or else with pip, whose output it shows only if pip fails too."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# Stand-ins for uv and pip say what those would.
UV = """
import os, sys
assert sys.argv[1:3] == ["pip", "install"] and sys.argv[-1] == "a.whl" and os.environ["UV_CONSTRAINT"] == "/c.txt"
print("Resolved 1 package in 1ms\\nDownloading a (1.5KiB)\\nPrepared 1 package in 1ms")
sys.exit({code})
"""
PIP = """
import os, sys
from pathlib import Path
if sys.argv[1:] == ["config", "list"]:
    sys.exit(print("global.constraint='/c.txt'{settings}"))
assert sys.argv[3] == "install" and sys.argv[-1] == "a.whl"
print("Collecting a")
print("  Downloading a.whl (1.5 kB)")
Path(os.environ["TMPDIR"], "a.whl").write_bytes(bytes(1500))
print("Installing collected packages: b, a")
print("ERROR: no room", file=sys.stderr)
Path("pip_ran").touch()
sys.exit({code})
"""


def run(folder: Path, uv_code: int, pip_code: int, settings: str = "") -> subprocess.CompletedProcess[str]:
    sources = {"uv": UV.format(code=uv_code), "pip": PIP.format(code=pip_code, settings=settings)}
    for name, source in sources.items():
        (folder / name).mkdir()
        (folder / name / "__init__.py").touch()
        (folder / name / "__main__.py").write_text(source)
    return subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "install_packages.py"), "a.whl"],
        env={**os.environ, "PYTHONPATH": str(folder)},
        cwd=folder,
        capture_output=True,
        text=True,
    )


def test_uv_installs_with_the_settings_of_pip(tmp_path: Path) -> None:
    done = run(tmp_path, uv_code=0, pip_code=1)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert not (tmp_path / "pip_ran").exists()


@pytest.mark.parametrize("code", [0, 2])
def test_pip_installs_if_uv_fails_and_shows_its_output_if_it_fails_too(tmp_path: Path, code: int) -> None:
    done = run(tmp_path, uv_code=1, pip_code=code)
    assert done.returncode == code
    assert ("ERROR: no room" in done.stderr) is bool(code)
    assert (tmp_path / "pip_ran").exists()
    assert done.stdout == ""


def test_pip_installs_where_it_has_a_setting_that_uv_would_ignore(tmp_path: Path) -> None:
    done = run(tmp_path, uv_code=0, pip_code=0, settings=r"\nglobal.only-binary=':all:'")
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "pip_ran").exists()


def test_it_needs_only_the_standard_library() -> None:
    # -S leaves out site-packages.
    words = [sys.executable, "-S", "-c", "import sys; sys.path.insert(0, 'scripts'); import install_packages"]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
