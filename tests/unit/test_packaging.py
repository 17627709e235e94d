"""What `pip install .` installs: every file of the packages, not only those that end in .py."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("cerebras_tensorflow", "csrun")


def files(folder: Path) -> set[str]:
    paths = (path for package in PACKAGES for path in (folder / package).rglob("*") if path.is_file())
    return {str(path.relative_to(folder)) for path in paths if path.suffix != ".pyc"}


def test_every_file_of_the_packages_is_installed(tmp_path: Path) -> None:
    pytest.importorskip("setuptools")
    command = [sys.executable, "-W", "ignore", "setup.py", "-q", "build_py", "--build-lib", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, check=True, timeout=120)
    assert files(ROOT) == files(tmp_path)
