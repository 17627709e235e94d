"""Which commands count as mistyped."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from csrun import interpreters
from csrun.interpreters import check_command, check_holds_no_prompt
from csrun.process import CommandError

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize(
    ("word", "meant"), [("pyhton-ws", "python-ws"), ("pyhton", "python"), ("python_ws", "python-ws"), ("slep", "sleep")]
)
def test_a_mistyped_program_gets_a_suggestion(word: str, meant: str) -> None:
    with pytest.raises(CommandError, match=f"{word}: command not found; did you mean '{meant}'") as caught:
        check_command([word, "run.py"], is_for_here=True)
    assert caught.value.exit_code == 127


def test_a_mistyped_script_gets_a_suggestion(tmp_path: Path) -> None:
    (tmp_path / "run.py").touch()
    with pytest.raises(CommandError, match=r"there is no file .*rnu.py'; did you mean '.*/run.py'"):
        check_command(["python-ws", str(tmp_path / "rnu.py")], is_for_here=True)


def test_a_missing_script_of_the_model_zoo_names_the_command_to_use() -> None:
    script = "modelzoo/src/cerebras/modelzoo/tools/convert_checkpoint.py"
    with pytest.raises(CommandError, match=r"a command with the same arguments: convert_checkpoint$"):
        check_command(["python", script, "list"], is_for_here=True)


@pytest.mark.parametrize("words", [["--mode", "trian"], ["--mode=trian"], ["--params", "p.yaml", "-m", "trian"]])
@pytest.mark.parametrize("is_for_here", [True, False])
def test_a_mistyped_mode_of_a_script_gets_a_suggestion(tmp_path: Path, words: list[str], is_for_here: bool) -> None:
    script = tmp_path / "run.py"
    script.touch()
    with pytest.raises(CommandError, match=r"run.py: unknown mode 'trian' .*; did you mean 'train'\?") as caught:
        check_command(["python-ws", str(script), *words], is_for_here)
    assert caught.value.exit_code == 2


def test_modes_that_a_script_or_a_module_beside_it_mentions_are_accepted(tmp_path: Path) -> None:
    script, beside = tmp_path / "run.py", tmp_path / "modes.py"
    script.write_text("MODES = ['evals']")
    beside.write_text("MORE = ('trian',)")
    for words in ([], ["--mode", "evals"], ["--mode", "trian"], ["--mode", "profile"], ["--mode"], ["-m", "eval_all"]):
        check_command(["python", str(script), *words], is_for_here=True)


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--max_stps", "5"], r"run.py: unrecognized arguments: --max_stps 5; did you mean '--max_steps'\?$"),
        (["--params", "configs/params_tny.yaml"], "params_tny.yaml.*did you mean '.*params_tiny.yaml'"),
        (["--params", "low.yaml"], "low.yaml: .*learning_rate.* -0.1"),
        (["--params", "broken.yaml"], "broken.yaml.*line 2"),
    ],
)
def test_a_reference_model_refuses_its_options_and_params_before_the_launch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], text: str
) -> None:
    model = ROOT / "reference_implementations" / "fc_mnist"
    params = (model / "configs" / "params_tiny.yaml").read_text()
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs" / "params_tiny.yaml").write_text(params)
    (tmp_path / "low.yaml").write_text(re.sub("learning_rate: .*", "learning_rate: -0.1", params))
    (tmp_path / "broken.yaml").write_text("model:\n\tdepth: 1\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CommandError, match=text) as caught:
        check_command(["python-ws", str(model / "run.py"), "--params", "configs/params_tiny.yaml", *words], True)
    assert caught.value.exit_code == 2
    assert "Traceback" not in str(caught.value)


def test_the_check_of_a_reference_model_runs_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = ROOT / "reference_implementations" / "fc_mnist"
    monkeypatch.chdir(tmp_path)
    words = ["--params", str(model / "configs" / "params_tiny.yaml"), "--mode", "train", "--model_dir", "run"]
    check_command(["python", str(model / "run.py"), *words], is_for_here=True)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "work",
    ["Path('made').touch()", "import prepare", "def made():\n    Path('made').touch()\n\nmade()", "for _ in [1]: pass"],
)
def test_a_script_that_does_work_of_its_own_is_not_run_before_the_launch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, work: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("prepare.py").write_text("from pathlib import Path\nPath('made').touch()\n")
    model = (ROOT / "reference_implementations" / "fc_mnist" / "run.py").read_text()
    model = model.replace("Path(__file__).resolve().parents[2]", repr(str(ROOT)))
    script = tmp_path / "run.py"
    script.write_text(model)
    with pytest.raises(CommandError, match="max_stps"):
        check_command(["python", str(script), "--max_stps", "5"], is_for_here=True)
    script.write_text(model.replace("MODEL =", f"{work}\n\nMODEL =", 1))
    check_command(["python", str(script), "--max_stps", "5"], is_for_here=True)
    assert not Path("made").exists()


def test_every_script_of_our_reference_models_checks_its_options() -> None:
    scripts = sorted((ROOT / "reference_implementations").rglob("run.py"))
    models = [script for script in scripts if script.parent.name != "common"]
    assert len(models) > 5
    for script in models:
        assert interpreters._only_declares_a_model(script.read_text()), script


def test_programs_missing_on_this_machine_are_accepted_for_a_cluster() -> None:
    check_command(["python3.99", "run.py"], is_for_here=False)
    check_command(["slep", "1"], is_for_here=False)
    with pytest.raises(CommandError, match="python-ws"):
        check_command(["pyhton-ws", "run.py"], is_for_here=False)


def test_a_prompt_would_hold_the_system(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.isatty", lambda _: False)
    check_holds_no_prompt(["python-ws"])  # a script from a pipe
    monkeypatch.setattr("os.isatty", lambda _: True)
    check_holds_no_prompt(["python-ws", "-i"])
    with pytest.raises(CommandError, match=r"python-ws: there is no script, .* csrun_cpu python-ws"):
        check_holds_no_prompt(["python-ws"])
