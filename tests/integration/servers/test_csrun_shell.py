"""The `cs>` shell through a real pseudo-terminal, and as scripts use it."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pexpect
import pytest

from cerebras_tensorflow.system import registry
from cerebras_tensorflow.version import __version__

UP, DOWN = "\x1b[A", "\x1b[B"


@pytest.fixture
def shell(home: Path, argv: Callable[..., list[str]]) -> Iterator[pexpect.spawn]:
    """`cs` at a terminal, at its first prompt."""
    words = argv("cs")
    terminal = pexpect.spawn(
        words[0], words[1:], encoding="utf-8", timeout=20, dimensions=(40, 140), env={**os.environ, "TERM": "xterm"}
    )
    terminal.expect_exact("cs>")
    yield terminal
    terminal.close(force=True)


def enter(shell: pexpect.spawn, line: str) -> None:
    shell.send(line + "\r")


def test_the_quickstart_transcript_works(shell: pexpect.spawn, home: Path) -> None:
    enter(shell, "config execmode show")
    shell.expect_exact("Configured Execution Mode : PIPELINED")
    enter(shell, "system standby")
    shell.expect_exact("This puts the system in standby. Do you want to proceed?")
    shell.expect_exact("> yes")
    shell.send("\r")
    shell.expect_exact("is in STANDBY")
    enter(shell, "config execmode setup")
    shell.expect_exact("> Pipelined")
    shell.expect_exact("Weight Streaming")
    shell.send(DOWN + "\r")
    shell.expect_exact("Selected execution mode configuration: \N{HEAVY CHECK MARK} Weight Streaming")
    enter(shell, "system activate")
    shell.expect_exact("rebooting")
    shell.expect_exact("is ACTIVE in Weight Streaming mode")
    enter(shell, "config execmode show")
    shell.expect_exact("Configured Execution Mode : WEIGHT STREAMING")
    enter(shell, "exit")
    shell.expect(pexpect.EOF)
    assert registry.find().execution_mode == "weight_streaming"


def test_a_question_accepts_a_typed_answer(shell: pexpect.spawn) -> None:
    enter(shell, "system standby")
    shell.expect_exact("> yes")
    shell.send("no\r")
    shell.expect_exact("Nothing was changed.")
    enter(shell, "system standby")
    shell.expect_exact("> yes")
    shell.send(DOWN + UP + "yes\r")
    shell.expect_exact("is in STANDBY")


def test_setup_while_active_names_the_standby_command(shell: pexpect.spawn) -> None:
    enter(shell, "config execmode setup")
    shell.expect_exact("Run `system standby` first")


def test_tab_completes_and_a_question_mark_helps(shell: pexpect.spawn, home: Path) -> None:
    shell.send("config ex\t")
    shell.expect_exact("ecmode")
    enter(shell, "show")
    shell.expect_exact("Configured Execution Mode : PIPELINED")
    shell.send("system ?")
    shell.expect_exact("system activate")
    shell.expect_exact("cs>")


@pytest.mark.parametrize(
    ("lines", "code", "text"),
    [
        (["config execmode show"], 0, "Configured Execution Mode : PIPELINED"),
        (["system show"], 0, "State          : ACTIVE"),
        (["system show"], 0, f"Software       : {__version__}"),
        (["config execmode setup pipelined"], 1, "Run `system standby` first"),
        (["system activate"], 1, "nothing to activate"),
        (["reboot; rm -rf /"], 2, "Unknown command"),
        (["jobs"], 0, "No jobs on cs2-embedded."),
        (["system standby --yes", "config execmode setup turbo"], 2, "expected pipelined or weight_streaming"),
        (["help system"], 0, "system standby"),
        (["jobs now"], 2, "takes no arguments"),
    ],
)
def test_commands_on_the_command_line_have_exit_codes(run, lines: list[str], code: int, text: str) -> None:
    done = run("cs", *[word for line in lines for word in ("-c", line)])
    assert done.returncode == code
    assert text in done.stdout + done.stderr


def test_a_script_on_standard_input_answers_questions_by_lines(run, home: Path) -> None:
    script = "# to weight streaming\nsystem standby\nyes\nconfig execmode setup\nweight streaming\nsystem activate\n"
    done = run("cs", stdin=script)
    assert done.returncode == 0, done.stderr
    assert "Selected execution mode configuration: \N{HEAVY CHECK MARK} Weight Streaming" in done.stdout
    assert registry.find_here().state.is_mode_pinned
    changes = [change.what for change in registry.changes(home, "cs2-embedded")]
    assert changes[1:] == ["system standby", "config execmode setup weight_streaming", "system activate"]


def test_a_script_ends_at_the_first_refusal(run, home: Path) -> None:
    assert run("cs", stdin="config execmode setup pipelined\nsystem standby --yes\n").returncode == 1
    assert not registry.find_here().state.is_standby


def test_the_error_of_an_unknown_system_names_the_create_command(run) -> None:
    done = run("cs", "--system", "nope", "-c", "system show")
    assert done.returncode == 1
    assert "cs-system create" in done.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="another user's rights can only be tried as root")
def test_non_administrators_can_read_but_not_change_the_system(
    home: Path, argv: Callable[..., list[str]], tmp_path: Path
) -> None:
    registry.find()
    with sqlite3.connect(home / "jobs.sqlite"):
        pass
    for folder in (home, *home.parents):
        if folder == Path("/tmp"):
            break
        folder.chmod(0o755)
    # Load everything before dropping rights: the other user may not be able to read the interpreter's folder.
    code = (
        "import os, sys; from csrun.shell import cli; cli.main(['-c', 'jobs'])\n"
        "os.setgroups([]); os.setresgid(65534, 65534, 65534); os.setresuid(65534, 65534, 65534)\n"
        "sys.exit(cli.main(['-c', sys.argv[1]]))"
    )

    def as_nobody(line: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([sys.executable, "-c", code, line], capture_output=True, text=True, timeout=60)

    shown = as_nobody("config execmode show")
    assert shown.returncode == 0, shown.stderr
    assert "PIPELINED" in shown.stdout
    refused = as_nobody("system standby --yes")
    assert refused.returncode == 1
    assert "only administrators" in refused.stderr
    at_prompt = "from csrun.shell import prompts; import encodings.idna, getpass, prompt_toolkit.shortcuts\n"
    at_prompt += "prompts.make_prompt(None)\n" + code.replace("cli.main(['-c', sys.argv[1]])", "cli.main([])")
    terminal = pexpect.spawn(sys.executable, ["-c", at_prompt], encoding="utf-8", timeout=20)
    terminal.expect_exact("cs>")
    terminal.send("system standby\r")
    terminal.expect_exact("only administrators")
    terminal.expect_exact("cs>")
    terminal.send("exit\r")
    terminal.expect(pexpect.EOF)
    assert not registry.find_here().state.is_standby
