"""Arguments, labels, names and messages never reach a shell, a path or a terminal unescaped."""

from __future__ import annotations

import json
import os
import shlex
from contextlib import suppress
from pathlib import Path

import pytest

from cerebras_tensorflow.system import jobs, registry
from csrun.csctl.cli import main as csctl
from csrun.manual import ANALYZER_OPTIONS, CPU_OPTIONS, WSE_OPTIONS

OPTIONS = [
    (program, option.name)
    for program, options in (
        ("csrun_wse", WSE_OPTIONS),
        ("csrun_cpu", CPU_OPTIONS),
        ("cs_input_analyzer", ANALYZER_OPTIONS),
    )
    for option in options
    if option.name != "debug"  # --debug asks for tracebacks
]


@pytest.fixture
def evil(tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A text with shell, path and terminal escapes. It creates a file `evil` if a shell evaluates it."""
    monkeypatch.chdir(tmp_path)
    target = tmp_path / "evil"
    return f"x$(touch {target});touch {target}|`touch {target}`&touch {target}\n../../evil \x1b[31m"


def check(folder: Path) -> None:
    assert not list(folder.rglob("evil*")) and not list(folder.parent.glob("evil*"))


@pytest.mark.parametrize(("program", "name"), OPTIONS)
def test_no_shell_evaluates_the_value_of_an_option(run, evil: str, tmp_path: Path, program: str, name: str) -> None:
    executor = [] if program == "cs_input_analyzer" else ["--executor", "embedded"]
    for words in ([f"--{name}={evil}"], [f"--{name.replace('-', '_')}", evil]):
        done = run(program, *executor, *words, "true")
        assert "Traceback" not in done.stderr
    check(tmp_path)


def test_the_container_gets_its_arguments_unchanged(run, evil: str, home: Path, tmp_path: Path, monkeypatch) -> None:
    # Stands in for Singularity, which cannot run in a test: prints its arguments.
    program = tmp_path / "bin" / "singularity"
    program.parent.mkdir()
    program.write_text("#!/usr/bin/env python3\nimport json, sys\nprint(json.dumps(sys.argv[1:]))\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")
    home.mkdir(exist_ok=True)
    image = evil.replace("\n", "")
    (home / "site.conf").write_text(f"SINGULARITY_IMAGE={shlex.quote(image)}\nEXECUTOR=embedded\n")
    done = run("csrun_cpu", "--mount-dirs", evil, "python", evil)
    # Blanks around a folder's name are dropped.
    assert json.loads(done.stdout.splitlines()[-1]) == [
        "exec",
        "-B",
        f"{tmp_path},{evil.strip()}",
        image,
        "python",
        evil,
    ]
    check(tmp_path)


@pytest.mark.parametrize(
    "words", [["get", "job"], ["cancel", "job"], ["log-export"], ["label", "job"], ["get"], ["get", "jobs", "-l"]]
)
@pytest.mark.parametrize("name", ["EVIL", "../../../etc/passwd", "' OR '1'='1", "%", "wsjob-*", "-x", ""])
def test_a_malicious_job_name_matches_no_job(
    home: Path, evil: str, tmp_path: Path, words: list[str], name: str, capfd: pytest.CaptureFixture[str]
) -> None:
    live = jobs.submit(home, "cs2-embedded", "pipelined", labels={"a": "1"})
    name = evil if name == "EVIL" else name
    with suppress(SystemExit):  # how argparse refuses
        csctl([*words, "--", name, *(["b=2"] if words[0] == "label" else [])])
    assert live.id not in capfd.readouterr().out or (name == "" and words[0] == "get")
    assert live.record.labels == {"a": "1"} and not live.record.is_cancel_requested
    assert not list(tmp_path.glob("*.zip"))
    check(tmp_path)
    live.finish(jobs.SUCCEEDED)


def test_labels_descriptions_and_users_are_printed_without_escapes(run, evil: str, home: Path, tmp_path: Path) -> None:
    live = jobs.submit(home, "cs2-embedded", "pipelined", evil, {"a": evil}, user=evil)
    live.wait_for_wafer(lambda: True)
    shown = [
        run("csctl", "get", "jobs"),
        run("cs", "-c", "jobs"),
        run("cs", "-c", "system show"),
        run("csctl", "get", "job", live.id),
    ]
    for done in shown:
        assert done.returncode == 0
        assert live.id in done.stdout
        assert "\x1b" not in done.stdout
    assert len(shown[0].stdout.splitlines()) == 2
    assert json.loads(run("csctl", "get", "job", live.id, "-o", "json").stdout)["meta"]["labels"] == {"a": evil}
    live.finish(jobs.SUCCEEDED)
    check(tmp_path)


@pytest.mark.parametrize("words", [["create"], ["create", "lab", "--address"], ["create", "lab", "--mode"], ["remove"]])
def test_a_malicious_system_name_is_refused(run, evil: str, home: Path, tmp_path: Path, words: list[str]) -> None:
    registry.find()
    done = run("cs-system", *words, evil)
    assert done.returncode != 0
    assert "Traceback" not in done.stderr
    assert [state.name for state in registry.listed(home)] == ["cs2-embedded"]
    assert run("cs", "--system", evil, "-c", "system show").returncode == 1
    assert run("csrun_wse", "--executor", "embedded", "python", "-c", "", "--cs_ip", evil).returncode == 1
    check(tmp_path)
