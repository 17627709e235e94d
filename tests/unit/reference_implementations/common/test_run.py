"""The command line of a model, up to the point where TensorFlow comes in."""

from __future__ import annotations

from pathlib import Path

import pytest

from cerebras_tensorflow.errors import SettingsError
from reference_implementations.common import run as run_module
from reference_implementations.common.run import ReferenceModel, load_params, run, with_port
from reference_implementations.gptj.settings import SECTIONS

CONFIGS = Path(run_module.__file__).parent.parent / "gptj" / "configs"
TINY = CONFIGS / "params_tiny.yaml"


def never(*arguments: object) -> None:
    raise AssertionError("settings were wrong, so nothing may run")


MODEL = ReferenceModel(sections=SECTIONS, model_fn=never, train_input_fn=never, eval_input_fn=never)


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        *(("10.0.0.1", "10.0.0.1:9000"), ("10.0.0.1:9001", "10.0.0.1:9001"), (None, None), ("", None)),
        *(("cs", "cs:9000"), ("cs:\u00b2", "cs:\u00b2:9000")),
    ],
)
def test_cs_ip_gets_port_9000_unless_it_has_one(address: str | None, expected: str | None) -> None:
    assert with_port(address) == expected


def test_data_files_are_relative_to_the_params_file(tmp_path: Path) -> None:
    options = run_module._parser().parse_args(["-p", str(TINY)])
    params = load_params(options, SECTIONS)
    assert Path(params["train_input"]["data_file"]).is_file()
    assert Path(params["eval_input"]["data_file"]).is_absolute()


def test_steps_on_the_command_line_replace_max_steps_in_the_file() -> None:
    options = run_module._parser().parse_args(["-p", str(TINY), "--steps", "7"])
    runconfig = load_params(options, SECTIONS)["runconfig"]
    assert (runconfig["steps"], runconfig["max_steps"]) == (7, None)


def test_the_option_for_micro_batches_overrides_the_input_sections(tmp_path: Path) -> None:
    text = TINY.read_text().replace("train_input:", "train_input:\n  micro_batch_size: 4")
    (tmp_path / "params.yaml").write_text(text)
    for words, expected in (([], 4), (["--micro_batch_size", "2"], 2), (["--micro_batch_size", "auto"], "auto")):
        options = run_module._parser().parse_args(["-p", str(tmp_path / "params.yaml"), *words])
        assert load_params(options, SECTIONS)["train_input"]["micro_batch_size"] == expected


@pytest.mark.parametrize(
    ("arguments", "change", "message"),
    [
        (
            ["--mode", "train", "--steps", "1", "--max_steps", "2"],
            ("", ""),
            "params.yaml with --max_steps, --steps: runconfig: steps (1) and max_steps (2) are both given",
        ),
        (
            ["--mode", "train", "--max_steps", "0"],
            ("", ""),
            "params.yaml with --max_steps: runconfig key 'max_steps' is 0; expected at least 1",
        ),
        (
            ["--mode", "train", "--steps", "1"],
            ("max_steps:", "max_step:"),
            "params.yaml: unknown runconfig key 'max_step'; did you mean 'max_steps'",
        ),
        ([], ("max_steps:", "max_step:"), "unknown runconfig key 'max_step'; did you mean 'max_steps'"),
        ([], ("hidden_size: 256", "hidden_size: 250"), "hidden_size 250 is not a multiple of num_heads 4"),
        ([], ("rotary_dim: 32", "rotary_dim: 31"), "rotary_dim is 31; expected an even number from 2 to 64"),
        ([], ("batch_size: 8", "batch_size: 0"), "train_input key 'batch_size' is 0; expected at least 1"),
        ([], ("initial_learning_rate: 2.0e-3", "initial_learning_rate: -0.1"), "is -0.1; expected at least 0"),
        ([], ("batch_size: 8", "batch_size: 8\n oops"), "params.yaml: not valid YAML: line 6"),
        (
            ["--micro_batch_size", "\u00b2"],
            ("", ""),
            "micro_batch_size is '\u00b2': expected a number of samples, auto",
        ),
        (["--checkpoint_path", "/nowhere/model.ckpt-1"], ("", ""), "checkpoint_path: /nowhere/model.ckpt-1"),
    ],
)
def test_a_mistake_is_one_line_with_status_2_and_names_only_the_options_at_fault(
    arguments: list[str],
    change: tuple[str, str],
    message: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    params = tmp_path / "params.yaml"
    params.write_text(TINY.read_text().replace(*change, 1))
    assert run(MODEL, ["-p", str(params), "--model_dir", str(tmp_path / "out"), *arguments]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_a_missing_params_file_exits_with_status_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(MODEL, ["-p", str(tmp_path / "no.yaml"), "--model_dir", str(tmp_path / "out")]) == 2
    assert "no.yaml" in capsys.readouterr().err


def test_a_model_dir_that_cannot_be_made_exits_with_status_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    assert run(MODEL, ["-p", str(TINY), "--model_dir", str(tmp_path / "file" / "out")]) == 2
    assert "cannot make model_dir" in capsys.readouterr().err


def test_a_model_dir_that_is_a_url_exits_with_status_2_and_makes_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(MODEL, ["-p", str(TINY), "--model_dir", "hdfs://host/run"]) == 2
    assert "hdfs:// cannot be read or written here" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_section_sparsity_is_checked_and_passed_on(tmp_path: Path) -> None:
    path = tmp_path / "params.yaml"
    for section, expected in (("{sparsity: 0.5}", {"sparsity": 0.5}), ("{sparsty: 0.5}", None)):
        path.write_text(f"{TINY.read_text()}\nsparsity: {section}\n")
        options = run_module._parser().parse_args(["-p", str(path)])
        if expected is not None:
            assert load_params(options, SECTIONS)["sparsity"] == expected
            continue
        with pytest.raises(SettingsError, match=r"params\.yaml: unknown key 'sparsty' .* did you mean 'sparsity'"):
            load_params(options, SECTIONS)


@pytest.mark.parametrize(
    "mode, ends, is_refused",
    [
        ("train", ["--max_steps", "6"], True),
        ("train_and_eval", ["--steps", "6"], True),
        ("train", ["--max_steps", "4"], False),
        ("eval", ["--max_steps", "6"], False),
    ],
)
def test_a_schedule_of_sparsity_that_reaches_1_is_refused(
    mode: str, ends: list[str], is_refused: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "params.yaml"
    gmp = "{algorithm: gmp, schedule: {type: linear, init: 0.0, slope: 0.2}, param_filter: 'fc*'}"
    path.write_text(f"{TINY.read_text()}\nsparsity: {gmp}\n")
    words = ["-p", str(path), "-m", mode, *ends, "--model_dir", str(tmp_path / "out")]
    if not is_refused:
        assert load_params(run_module._parser().parse_args(words), SECTIONS)["sparsity"]["algorithm"] == "gmp"
        return
    assert run(MODEL, [*words, "--validate_only"]) == 2
    assert "reaches 1 by step 6, so all of what param_filter 'fc*' takes would be zero" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
