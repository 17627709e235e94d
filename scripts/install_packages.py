"""Does what `pip install` does, with uv where it can be had, which is faster. Shows one progress line.

Usage: python scripts/install_packages.py [--python PYTHON] ARGUMENT...   (arguments that pip and uv share)

PYTHON names another environment to install into. If uv cannot be installed, fails, or would ignore a setting of pip,
then pip installs. pip's output is shown if it fails.

It runs in a new virtual environment, so it imports only the standard library, and modules of ours that do the same.
"""

from __future__ import annotations

import ast
import compileall
import importlib.util
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from cerebras_tensorflow.progress import Progress

_UNITS = {"bytes": 1, "kB": 10**3, "MB": 10**6, "GB": 10**9, "B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}

# The settings of pip that say where packages come from, with uv's environment variables for them.
_SETTINGS_FOR_UV = {
    "index-url": "UV_DEFAULT_INDEX",
    "extra-index-url": "UV_INDEX",
    "find-links": "UV_FIND_LINKS",
    "constraint": "UV_CONSTRAINT",
    "no-index": "UV_NO_INDEX",
    "trusted-host": "UV_INSECURE_HOST",
    "proxy": "ALL_PROXY",
    "cert": "SSL_CERT_FILE",
}
# The settings of pip that do not change what is installed.
_WITHOUT_EFFECT = re.compile(
    "break-system-packages|cache-dir|config-file|debug|default-timeout|disable-pip-version-check|log|no-cache-dir"
    "|no-color|no-input|no-warn-script-location|progress-bar|quiet|require-virtualenv|retries|root-user-action"
    "|timeout|verbose"
)


@dataclass(frozen=True)
class _Installer:
    """A program that installs packages.

    Attributes:
        words: Its command line.
        environment: Environment variables for it.
        announcement: Matches a line that announces a download; its groups are the size and the size's unit.
        downloaded: Matches the line after the last download; its group has or lists the packages.
        received: Returns how much was downloaded so far [B].
    """

    words: list[str]
    environment: Mapping[str, str]
    announcement: re.Pattern[str]
    downloaded: re.Pattern[str]
    received: Callable[[], int]


_PIP_ANNOUNCEMENT = re.compile(r"\s*(?:Downloading|Using cached) \S+ \(([\d.]+) ?(\w+)\)")
_UV_ANNOUNCEMENT = re.compile(r"Downloading \S+ \(([\d.]+) ?(\w+)\)")


def main(arguments: list[str]) -> int:
    """Install with uv or else with pip, and return the exit code."""
    python = arguments[1] if arguments[:1] == ["--python"] else sys.executable
    arguments = arguments[2:] if arguments[:1] == ["--python"] else arguments
    environment = uv_environment(_output([sys.executable, "-m", "pip", "config", "list"]))
    if environment is not None and _has_uv():
        code, output = _run(_uv(python, arguments, environment), python)
        if code == 0:
            _compile(_site_packages(python))
            return 0
        reason = next((line.strip() for line in output if line.strip()), f"exit code {code}")
        print(f"uv cannot install {arguments[-1]} ({reason}); trying pip", file=sys.stderr)
    with tempfile.TemporaryDirectory() as folder:
        code, output = _run(_pip(python, arguments, Path(folder)), python)
    if code:
        sys.stderr.write("".join(output))
    return code


def uv_environment(pip_settings: str) -> dict[str, str] | None:
    r"""Translate pip's settings for uv.

    Args:
        pip_settings: The output of `pip config list`.

    Returns:
        Environment variables; None if uv has no setting for one of pip's.

    >>> uv_environment("global.index-url='https://a/simple'\nglobal.timeout='9'\n:env:.find-links='/b\\n/c'")
    {'UV_INDEX_STRATEGY': 'unsafe-best-match', 'UV_DEFAULT_INDEX': 'https://a/simple', 'UV_FIND_LINKS': '/b,/c'}
    >>> uv_environment("install.only-binary=':all:'") is None
    True
    """
    # As pip: the best version of all indexes, not of the first index that has the package.
    environment = {"UV_INDEX_STRATEGY": "unsafe-best-match"}
    for name, value in re.findall(r"^(?:global|install|:env:)\.([\w-]+)=(.*)$", pip_settings, re.MULTILINE):
        if name in _SETTINGS_FOR_UV:
            separator = "," if name == "find-links" else " "
            environment[_SETTINGS_FOR_UV[name]] = separator.join(ast.literal_eval(value).split())
        elif not _WITHOUT_EFFECT.fullmatch(name):
            return None
    return environment


def announced_bytes(line: str, announcement: re.Pattern[str] = _PIP_ANNOUNCEMENT) -> int:
    """Return the size of the file that a line of an installer announces [B]; 0 if it announces none.

    >>> announced_bytes("  Downloading tensorflow-2.21.0-cp311-cp311-linux_x86_64.whl (664.9 MB)")
    664900000
    >>> announced_bytes("Downloading mypy (14.5MiB)", _UV_ANNOUNCEMENT)
    15204352
    >>> announced_bytes("Requirement already satisfied: six in ./.venv")
    0
    """
    match = announcement.match(line)
    return round(float(match[1]) * _UNITS.get(match[2], 0)) if match else 0


def _has_uv() -> bool:
    """Install uv beside this Python if it is missing, and say whether it is there."""
    if importlib.util.find_spec("uv") is None:
        _output([sys.executable, "-m", "pip", "install", "--disable-pip-version-check", "--no-input", "--quiet", "uv"])
        importlib.invalidate_caches()
    return importlib.util.find_spec("uv") is not None


def _uv(python: str, arguments: list[str], environment: Mapping[str, str]) -> _Installer:
    # uv's cache keeps a built wheel of a checkout until pyproject.toml changes, so build ours again.
    own = ["--refresh-package", "cerebras_tensorflow"]
    before = _received_by_this_machine()
    return _Installer(
        [sys.executable, "-m", "uv", "pip", "install", "--no-progress", "--python", python, *own, *arguments],
        environment,
        _UV_ANNOUNCEMENT,
        re.compile(r"Prepared (\d+) package"),
        lambda: _received_by_this_machine() - before,
    )


def _pip(python: str, arguments: list[str], folder: Path) -> _Installer:
    options = ["--disable-pip-version-check", "--no-input", "--progress-bar=off"]
    return _Installer(
        [sys.executable, "-m", "pip", "--python", python, "install", *options, *arguments],
        {"TMPDIR": str(folder), "PYTHONUNBUFFERED": "1"},
        _PIP_ANNOUNCEMENT,
        re.compile("Installing collected packages: (.*)"),
        lambda: _size(folder),
    )


def _run(installer: _Installer, python: str) -> tuple[int, list[str]]:
    """Run an installer, and return its exit code and its output."""
    process = subprocess.Popen(
        installer.words,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, **installer.environment},
    )
    assert process.stdout is not None
    output = _show(installer, iter(process.stdout), _site_packages(python))
    return process.wait(), output


def _show(installer: _Installer, lines: Iterator[str], site_packages: Path) -> list[str]:
    """Show the progress that the output describes, and return the output."""
    output: list[str] = []
    announced = [0]
    num_packages = 0
    with Progress("Downloading packages", lambda: announced[0], done=installer.received):
        for line in lines:
            output.append(line)
            announced[0] += announced_bytes(line, installer.announcement)
            if match := installer.downloaded.match(line):
                num_packages = int(match[1]) if match[1].isdigit() else len(match[1].split(", "))
                break
    before = _num_installed(site_packages)
    with Progress("Installing packages", num_packages, "packages", done=lambda: _num_installed(site_packages) - before):
        output.extend(lines)
    return output


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


def _received_by_this_machine() -> int:
    """Return what this machine has received over all networks [B]: uv does not say how far a download is."""
    try:
        lines = Path("/proc/net/dev").read_text().splitlines()[2:]
    except OSError:
        return 0
    return sum(int(line.partition(":")[2].split()[0]) for line in lines)


def _site_packages(python: str) -> Path:
    return next(Path(python).parents[1].glob("lib/python*/site-packages"))


def _num_installed(site_packages: Path) -> int:
    return sum(1 for _ in site_packages.glob("*.dist-info"))


def _compile(site_packages: Path) -> None:
    """Compile all modules that are not compiled yet, as pip does and uv does not.

    Where PYTHONDONTWRITEBYTECODE is set, Python would compile them again in each process.
    """
    modules = [str(path) for path in site_packages.rglob("*.py")]
    chunks = [modules[start : start + 100] for start in range(0, len(modules), 100)]
    with (
        Progress("Compiling modules", len(modules), "modules") as progress,
        ProcessPoolExecutor(len(os.sched_getaffinity(0))) as processes,
    ):
        for number in processes.map(_compile_each, chunks):
            progress.advance(number)


def _compile_each(modules: list[str]) -> int:
    for module in modules:
        compileall.compile_file(module, quiet=2)  # 2: packages contain templates that are no Python
    return len(modules)


def _output(words: list[str]) -> str:
    return subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True).stdout


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
