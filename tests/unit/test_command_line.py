"""Options, errors and exit codes that all commands share."""

from __future__ import annotations

import contextlib
import importlib
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from cerebras_tensorflow import command_line
from cerebras_tensorflow.errors import SettingsError
from cerebras_tensorflow.version import __version__


def entry_points() -> dict[str, Callable[[], int]]:
    """All our commands."""
    text = (Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8")
    section = text.split("[project.scripts]")[1].split("\n[")[0]
    places = dict(re.findall(r'^([\w-]+) = "(.*)"$', section, re.MULTILINE))
    parts = {command: place.split(":") for command, place in places.items()}
    return {command: getattr(importlib.import_module(module), name) for command, (module, name) in parts.items()}


def parser() -> command_line.Parser:
    parser = command_line.Parser(prog="cs-tool")
    parser.add_argument("--out_dir")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    show = commands.add_parser("show")
    show.add_argument("--max-jobs", type=int)
    show.add_argument("--mode", choices=("train", "eval"))
    commands.add_parser("sum").add_argument("--model", required=True)
    return parser


@pytest.mark.parametrize("words", [["--out-dir", "x"], ["--out_dir=x"], ["--out-dir=x"], ["--out_dir", "x"]])
def test_options_may_have_hyphens_or_underscores(words: list[str]) -> None:
    assert parser().parse_args([*words, "show", "--max_jobs=3"]).out_dir == "x"
    assert parser().parse_args(["show", "--max_jobs=3"]).max_jobs == 3


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (["shwo"], "'show'"),
        (["show", "--mode", "trian"], "'train'"),
        (["show", "--max-jbos", "3"], "'--max-jobs'"),
        (["--outdir=x", "show"], "'--out_dir'"),
        (["sum", "--modle", "x"], "'--model'"),
    ],
)
def test_a_mistyped_word_gets_a_suggestion(words: list[str], meant: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        parser().parse_args(words)
    assert f"did you mean {meant}?" in capsys.readouterr().err


def test_an_option_of_another_command_is_not_suggested(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        parser().parse_args(["sum", "--model", "x", "--max-jbos", "3"])
    assert "did you mean" not in capsys.readouterr().err


def test_every_command_has_a_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        parser().parse_args(["--version"])
    assert capsys.readouterr().out == f"cs-tool {__version__}\n"


def fail() -> int:
    raise SettingsError("no \x1b[31m good")


def test_an_error_of_ours_is_one_line_without_escapes(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CEREBRAS_DEBUG", raising=False)
    assert command_line.exit_code("cs-tool", fail) == 1
    assert capsys.readouterr().err == "cs-tool: error: no \\x1b[31m good\n"


def test_a_word_that_is_not_utf8_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    word = os.fsdecode(b"job-\xff")
    assert command_line.exit_code("cs-tool", lambda: len(word.encode())) == 1
    assert capsys.readouterr().err == "cs-tool: error: 'job-\\udcff' is not UTF-8 text\n"


def test_an_unusable_file_is_an_error_of_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    def write() -> int:
        Path("/nonexistent/x").write_text("")
        return 0

    assert command_line.exit_code("cs-tool", write) == 1
    assert capsys.readouterr().err == "cs-tool: error: [Errno 2] No such file or directory: '/nonexistent/x'\n"


def test_debug_shows_the_traceback(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CEREBRAS_DEBUG", "0")
    parser().parse_args(["show", "--debug"])
    assert os.environ["CEREBRAS_DEBUG"] == "1"
    assert command_line.exit_code("cs-tool", fail, failure=7) == 7
    assert "Traceback" in capsys.readouterr().err


@pytest.mark.parametrize("count", [1, 100_000])
def test_a_closed_output_pipe_ends_a_command_quietly(count: int) -> None:
    script = (
        "import sys; from cerebras_tensorflow import command_line\n"
        f"sys.exit(command_line.exit_code('cs-tool', lambda: print('line\\n' * {count}) or 0))"
    )
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run([sys.executable, "-c", script], stdout=writer, stderr=subprocess.PIPE, text=True)
    os.close(writer)
    assert (done.returncode, done.stderr) == (141, "")


@pytest.mark.parametrize(
    ("command", "words"),
    [*[(command, ()) for command in entry_points()], ("csctl", ("cancel",)), ("convert_checkpoint", ("convert",))],
)
def test_the_first_three_lines_of_a_help_say_what_a_command_is_for(
    command: str,
    words: tuple[str, ...],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    home: Path,
) -> None:
    monkeypatch.setattr(os, "execve", lambda *_: None)  # python-ws becomes Python
    monkeypatch.setattr(sys, "argv", [command, *words, "--help"])
    with contextlib.suppress(SystemExit):
        entry_points()[command]()
    usage, empty, purpose, *_ = capsys.readouterr().out.splitlines()
    assert usage.startswith(" ".join(["usage:", command, *words])) and empty == ""
    assert len(purpose.split()) > 2 and purpose[0].isupper()
