"""Every code block of README, docs and the reference models runs when it is pasted.

The blocks of a page run in order in a copy of the checkout; those of a model begin in the model's folder. Each block
gets a new shell with the folder and variables that the last one left. If an `output` block follows, the printed text
must match it. tests/docs/markdown.py lists the words after a fence that say how its block is tested.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.docs.markdown import MODELS, ROOT, Block, blocks, folder_of, pages

RUNNABLE = ("bash", "python")
LANGUAGES = (*RUNNABLE, "text", "yaml", "json", "dockerfile", "ini")
OPTIONS = {"slow", "slurm", "file", "exits", "output", "norun"}
TIMEOUT_S = 900
# Pages that start TensorFlow many times, or train a model.
SLOW_DOCS = {"checkpoints.md", "porting.md", "quickstart.md", "training-what-does-not-fit.md"}
# Commands whose Python loads TensorFlow. Only the quick blocks of README start it anew: that is what users do first.
WARM_COMMANDS = {
    "csrun_wse": "csrun.cli:csrun_wse",
    "csrun_cpu": "csrun.cli:csrun_cpu",
    "python-ws": "csrun.interpreters:python_ws",
    "cs-plan": "cerebras_tensorflow.planner.cli:main",
}
# Limit on blocks that no test runs.
MOST_THAT_DO_NOT_RUN = 10

# The state of the shell that a block leaves to the next one.
SHELL = """
set -euo pipefail
block=$1 state=$2
[ ! -e "$state" ] || source "$state"
cd "$FOLDER"
trap 'code=$?; { declare -px; printf "FOLDER=%q\\n" "$PWD"; } > "$state"; exit $code' EXIT
source "$block"
"""


def is_run(block: Block) -> bool:
    return block.language in RUNNABLE and "norun" not in block.options and "file" not in block.options


def runs(page_blocks: Sequence[Block]) -> bool:
    """Whether at least one of the blocks is run."""
    return any(map(is_run, page_blocks))


def blocks_without(path: Path, *words: str) -> list[Block]:
    """The blocks of a page that have none of the words."""
    return [block for block in blocks(path) if not set(words) & set(block.options)]


def page_id(path: Path) -> str:
    return str(path.relative_to(ROOT))


def is_slow(page: Path) -> bool:
    return page.name in SLOW_DOCS or (page.is_relative_to(MODELS) and page.name != "TUTORIAL.md")


def with_word(*words: str) -> list[Path]:
    """Pages with a block that has one of the words."""
    return [path for path in pages() if any(word in block.options for block in blocks(path) for word in words)]


QUICK_PAGES = [path for path in pages() if not is_slow(path) and runs(blocks_without(path, "slow", "slurm"))]
SLOW_PAGES = [
    path for path in pages() if (is_slow(path) or path in with_word("slow")) and runs(blocks_without(path, "slurm"))
]


@pytest.mark.parametrize("path", pages(), ids=page_id)
def test_every_block_has_a_language_and_known_words(path: Path) -> None:
    for block in blocks(path):
        assert block.language in LANGUAGES, f"{block.place}: {block.language!r}"
        assert set(block.options) <= OPTIONS, f"{block.place}: {set(block.options) - OPTIONS}"
        assert "norun" not in block.options or len(block.options["norun"]) > 10, f"{block.place}: say why"


def test_few_blocks_do_not_run() -> None:
    left_out = [block.place for path in pages() for block in blocks(path) if "norun" in block.options]
    assert len(left_out) <= MOST_THAT_DO_NOT_RUN, left_out


@pytest.fixture
def checkout(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the checkout in which the commands of this environment are installed."""
    if shutil.which("csrun_wse", path=str(Path(sys.executable).parent)) is None:
        pytest.skip("the commands are not installed: run scripts/setup_venv.sh test")
    folder = tmp_path / "checkout"
    left_out = shutil.ignore_patterns(".*", "__pycache__", "_build", "generated", "model_dir", "*.egg-info", "golden")
    for item in ("docs", "reference_implementations", "scripts", "tests", "csrun", "cerebras_tensorflow"):
        shutil.copytree(ROOT / item, folder / item, ignore=left_out, symlinks=True)
    for item in ROOT.iterdir():
        if item.is_file() and not item.name.startswith("."):
            shutil.copy(item, folder / item.name)
    # The pattern above also drops our package saver/model_dir, so copy the whole package again.
    shutil.rmtree(folder / "cerebras_tensorflow")
    shutil.copytree(ROOT / "cerebras_tensorflow", folder / "cerebras_tensorflow")
    # Skip the installation: this environment replaces the one that the blocks would make.
    (folder / ".venv").symlink_to(sys.prefix)
    (folder / "scripts" / "setup_venv.sh").write_text("#!/bin/sh\n")
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", str(folder))
    monkeypatch.setenv("HOME", str(tmp_path / "user"))
    (tmp_path / "user").mkdir()
    return folder


@pytest.fixture
def warm_commands(checkout: Path, warm_python: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Puts `python` and the commands of WARM_COMMANDS on PATH; each Python that they start has TensorFlow loaded."""
    folder = checkout.parent / "bin"
    folder.mkdir()
    (folder / "python").symlink_to(warm_python[0])
    for command, place in WARM_COMMANDS.items():
        module, function = place.split(":")
        python = warm_python[0] if command == "cs-plan" else sys.executable  # the launchers run without TensorFlow
        lines = [f"import sys; sys.executable = {warm_python[0]!r}", f"from {module} import {function}"]
        (folder / command).write_text("\n".join([f"#!{python}", *lines, f"sys.exit({function}())\n"]))
        (folder / command).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")


class Page:
    """Runs the blocks of one page."""

    def __init__(self, checkout: Path, path: Path) -> None:
        self._folder = checkout / folder_of(path).relative_to(ROOT)
        self._state = checkout.parent / "shell_state"
        self._scripts = checkout.parent
        self._printed = ""

    def play(self, page_blocks: Sequence[Block]) -> None:
        """Run blocks; fail if one fails or prints something else, or if there is none to run."""
        assert runs(page_blocks), "no block to run"
        for number, block in enumerate(page_blocks):
            if "file" in block.options:
                (self._cwd() / block.options["file"]).write_text(block.text)
            elif "output" in block.options:
                assert matches(block.text, self._printed), f"{block.place}\nexpected {block.text}\ngot {self._printed}"
            elif is_run(block):
                self._run(block, number)

    def _run(self, block: Block, number: int) -> None:
        script = self._scripts / f"block_{number}.sh"
        script.write_text(block.text)
        if block.language == "python":
            program = self._cwd() / f"pasted_{number}.py"
            program.write_text(block.text)
            script.write_text(f"python {program.name}\n")
        done = subprocess.run(
            ["bash", "-c", SHELL, "bash", str(script), str(self._state)],
            env={**os.environ, "FOLDER": str(self._folder)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=TIMEOUT_S,
        )
        self._printed = done.stdout
        expected = int(block.options.get("exits", "0"))
        assert done.returncode == expected, f"{block.place} exits with {done.returncode}:\n{done.stdout[-6000:]}"

    def _cwd(self) -> Path:
        if not self._state.exists():
            return self._folder
        said = re.findall(r"^FOLDER=(.*)$", self._state.read_text(), flags=re.MULTILINE)
        return Path(said[-1].replace("\\ ", " "))


def matches(expected: str, printed: str) -> bool:
    """Whether an output contains the lines of a text in order; `...` in a line stands for any text.

    >>> matches("loss = ...", "step 1\\nloss = 2.5\\n")
    True
    """
    lines = [line.strip() for line in printed.splitlines()]
    for wanted in expected.splitlines():
        pattern = re.compile(".*".join(re.escape(part) for part in wanted.strip().split("...")))
        while lines and not pattern.search(lines[0]):
            lines.pop(0)
        if not lines:
            return False
    return True


@pytest.mark.parametrize("path", QUICK_PAGES, ids=page_id)
def test_the_quick_blocks_of_a_page_run_in_order(path: Path, checkout: Path, request: pytest.FixtureRequest) -> None:
    if path.name != "README.md":
        request.getfixturevalue("warm_commands")
    Page(checkout, path).play(blocks_without(path, "slow", "slurm"))


@pytest.mark.slow
@pytest.mark.parametrize("path", SLOW_PAGES, ids=page_id)
def test_all_blocks_of_a_page_run_in_order(path: Path, checkout: Path) -> None:
    Page(checkout, path).play(blocks_without(path, "slurm"))


@pytest.mark.slurm
@pytest.mark.parametrize("path", with_word("slurm"), ids=page_id)
def test_all_blocks_of_a_page_run_under_slurm(path: Path, checkout: Path, slurm: None) -> None:
    Page(checkout, path).play(blocks_without(path, "slow"))
