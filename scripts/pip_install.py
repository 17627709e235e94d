"""Runs `pip install` with one progress line: the bytes downloaded, then the packages installed.

Usage: python scripts/pip_install.py ARGUMENT...   (those of pip install; pip's own output is shown if it fails)

It runs in a new virtual environment, so it imports only the standard library, and modules of ours that do the same.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from cerebras_tensorflow.progress import Progress

_FILE = re.compile(r"\s*(?:Downloading|Using cached) \S+ \(([\d.]+) (\w+)\)")
_PACKAGES = "Installing collected packages: "
_UNITS = {"bytes": 1, "kB": 10**3, "MB": 10**6, "GB": 10**9}


def main(arguments: list[str]) -> int:
    """Run pip, and return its exit code."""
    with tempfile.TemporaryDirectory() as folder:
        words = ["install", "--disable-pip-version-check", "--no-input", "--progress-bar=off", *arguments]
        pip = subprocess.Popen(
            [sys.executable, "-m", "pip", *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, "TMPDIR": folder, "PYTHONUNBUFFERED": "1"},
        )
        assert pip.stdout is not None
        output = _show(iter(pip.stdout), Path(folder))
        code = pip.wait()
    if code:
        sys.stderr.write("".join(output))
    return code


def _show(lines: Iterator[str], folder: Path) -> list[str]:
    """Show the progress that pip's output describes, and return the output.

    Args:
        lines: The output.
        folder: pip's temporary folder, which gets the downloaded files.
    """
    output: list[str] = []
    announced = [0]
    packages: list[str] = []
    with Progress("Downloading packages", lambda: announced[0], done=lambda: _size(folder)):
        for line in lines:
            output.append(line)
            announced[0] += announced_bytes(line)
            if line.startswith(_PACKAGES):
                packages = line.removeprefix(_PACKAGES).split(", ")
                break
    before = _num_installed()
    with Progress("Installing packages", len(packages), "packages", done=lambda: _num_installed() - before):
        output.extend(lines)
    return output


def announced_bytes(line: str) -> int:
    """Return the size of the file that a line of pip's output announces [B]; 0 if it announces none.

    >>> announced_bytes("  Downloading tensorflow-2.21.0-cp311-cp311-linux_x86_64.whl (664.9 MB)")
    664900000
    >>> announced_bytes("Requirement already satisfied: six in ./.venv")
    0
    """
    match = _FILE.match(line)
    return round(float(match[1]) * _UNITS.get(match[2], 0)) if match else 0


def _size(folder: Path) -> int:
    """Return the size of the files in a folder [B]. pip may remove them meanwhile."""
    total = 0
    for root, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.stat(os.path.join(root, name)).st_size
            except FileNotFoundError:
                continue
    return total


def _num_installed() -> int:
    return sum(1 for _ in Path(sysconfig.get_path("purelib")).glob("*.dist-info"))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
