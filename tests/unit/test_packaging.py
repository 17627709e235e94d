"""What `pip install .` installs: every file of the packages, not only those that end in .py."""

from __future__ import annotations

import os
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


def test_pip_installs_the_package_and_its_commands_from_a_git_url(tmp_path: Path) -> None:
    if not (ROOT / ".git").exists():
        pytest.skip("this copy is no git checkout")
    pytest.importorskip("setuptools")
    words = ["install", "-q", "--disable-pip-version-check", "--no-deps", "--no-build-isolation", "--target", tmp_path]
    subprocess.run([sys.executable, "-m", "pip", *words, f"git+{ROOT.as_uri()}"], check=True, timeout=120)
    code = "from csrun.cli import csrun_wse; csrun_wse(['--version'])"
    environ = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=environ, capture_output=True, text=True)
    assert done.stdout.startswith("csrun_wse "), done.stderr
    assert (tmp_path / "bin" / "csrun_wse").exists()
