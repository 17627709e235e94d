"""The options of run.py, each on a GPT-2 small enough to train in seconds."""

from __future__ import annotations

import dataclasses
import logging
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from cerebras_tensorflow.errors import CerebrasError
from cerebras_tensorflow.estimator.training.open_session import TrainingSessionCreator
from cerebras_tensorflow.saver.checkpoint_reader import open_checkpoint
from cerebras_tensorflow.system import registry
from cerebras_tensorflow.units import parse_size
from reference_implementations.bert.fine_tuning.classifier.run import MODEL as CLASSIFIER
from reference_implementations.bert.run import MODEL as BERT
from reference_implementations.common import run as run_module
from reference_implementations.common.data.token_files import windows, write_hdf5
from reference_implementations.common.run import ReferenceModel, load_params, run
from reference_implementations.gpt2.run import MODEL

CONFIG = Path(run_module.__file__).parent.parent / "gpt2" / "configs" / "params_tiny.yaml"
Run = Callable[..., int]


@pytest.fixture
def params(tmp_path: Path) -> Path:
    """The tiny config, smaller: one layer of 32."""
    content: dict[str, Any] = yaml.safe_load(CONFIG.read_text())
    for section in ("train_input", "eval_input"):
        content[section]["data_file"] = str(CONFIG.parent / content[section]["data_file"])
        content[section].update(batch_size=4, max_sequence_length=16)
    content["model"].update(hidden_size=32, num_hidden_layers=1, filter_size=64, num_heads=2)
    content["optimizer"]["learning_rate"] = 1e-2
    content["csconfig"] = {"min_stream_bytes": 1024}
    content["runconfig"] = {
        "save_checkpoints_steps": 2,
        "eval_steps": 3,
        "tf_random_seed": 1,
        "log_step_count_steps": 1,
    }
    path = tmp_path / "params.yaml"
    path.write_text(yaml.safe_dump(content))
    return path


@pytest.fixture(params=["pipelined", "weight_streaming"])
def start(request: pytest.FixtureRequest, home: Path, params: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Calls run() in an execution mode: (model_dir, *options, model=...) -> status."""
    monkeypatch.setenv("CEREBRAS_EXECUTION_MODE", request.param)

    def call(model_dir: Path, *options: str, model: ReferenceModel = MODEL) -> int:
        return run(model, ["--params", str(params), "--model_dir", str(model_dir), *options])

    return call


def saved(folder: Path) -> dict[int, Path]:
    """The checkpoints of a folder in TensorFlow's format, of either mode, by step."""
    names = {path.name.removesuffix(".index") for path in folder.glob("model*ckpt-*.index")}
    return {int(name.rpartition("-")[2]): folder / name for name in names}


def weights(path: Path) -> dict[str, np.ndarray]:
    with open_checkpoint(path) as reader:
        return {name: reader.read(name) for name in reader.names()}


def test_eval_all_evaluates_every_checkpoint_and_eval_the_chosen_one(
    start: Run, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "out"
    assert start(folder, "--mode", "train", "--max_steps", "4") == 0
    caplog.set_level(logging.INFO)
    assert start(folder, "--mode", "eval_all", "--checkpoint_path", str(saved(folder)[2])) == 0
    assert "is not used: eval_all evaluates each checkpoint" in caplog.text
    for step in saved(folder):
        assert f"Saving dict for global step {step}:" in caplog.text
    assert set(saved(folder)) >= {2, 4}
    caplog.clear()
    assert start(folder, "--mode", "eval", "--checkpoint_path", str(saved(folder)[2]), "--eval_steps", "2") == 0
    assert "Saving dict for global step 2:" in caplog.text
    assert "global step 4" not in caplog.text


def test_predict_writes_the_requested_batches(start: Run, tmp_path: Path) -> None:
    folder = tmp_path / "out"
    assert start(folder, "--mode", "train_and_eval", "--max_steps", "2") == 0
    assert start(folder, "--mode", "predict", "--eval_steps", "5") == 0
    with np.load(folder / "predictions.npz") as predictions:
        assert predictions["next_token"].shape == (20, 16)


def test_training_from_a_checkpoint_path_starts_with_its_weights_at_step_0(start: Run, tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    assert start(first, "--mode", "train", "--max_steps", "2") == 0
    source = saved(first)[2]
    assert start(second, "--mode", "train", "--max_steps", "1", "--checkpoint_path", str(source)) == 0
    begun, given = weights(saved(second)[0]), weights(source)
    assert begun["global_step"] == 0
    model = [
        name for name in begun if "AdamW" not in name and name not in ("global_step", "beta1_power", "beta2_power")
    ]
    assert len(model) == 20
    for name in model:
        np.testing.assert_array_equal(begun[name], given[name], err_msg=name)


def test_compile_only_compiles_and_validate_only_does_not(start: Run, tmp_path: Path) -> None:
    for flag, is_compiled in (("--validate_only", False), ("--compile_only", True)):
        folder = tmp_path / flag.strip("-")
        assert start(folder, "--mode", "train", "--max_steps", "2", flag) == 0
        assert bool(list(folder.glob("**/tfcs_*"))) == is_compiled
        assert not saved(folder)


def test_predict_is_compiled_with_the_input_of_predict(start: Run, tmp_path: Path) -> None:
    asked: list[str] = []

    def predict_input_fn(params: dict[str, Any]) -> Any:
        asked.append("predict")
        return MODEL.input_fn("infer")(params)

    model = dataclasses.replace(MODEL, predict_input_fn=predict_input_fn)
    assert start(tmp_path / "out", "--mode", "predict", "--validate_only", model=model) == 0
    assert asked and set(asked) == {"predict"}


def test_a_resumed_run_with_gradient_accumulation_ends_with_the_same_weights(
    start: Run, params: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    content = yaml.safe_load(params.read_text())
    content["optimizer"] |= {"grad_accum_steps": 3, "loss_scaling_factor": "dynamic"}
    params.write_text(yaml.safe_dump(content))
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    assert start(whole, "--mode", "train", "--max_steps", "4") == 0
    assert start(parts, "--mode", "train", "--max_steps", "2") == 0
    assert start(parts, "--mode", "train", "--max_steps", "4") == 0
    written = yaml.safe_load((parts / "train" / "params_train.yaml").read_text())
    assert written["train_input"]["skip_steps"] == 6
    ours, theirs = weights(saved(whole)[4]), weights(saved(parts)[4])
    for name, value in ours.items():
        np.testing.assert_array_equal(value, theirs[name], err_msg=name)


def test_a_refused_memory_budget_names_one_that_suffices(
    start: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert start(tmp_path / "refused", "--mode", "train", "--max_steps", "1", "--memory_budget", "1MB") == 1
    match = re.search(
        r"memory_budget is 1\.0 MB, and this step needs (?:at least )?([\d.]+ [MG]B)", capsys.readouterr().err
    )
    assert match
    assert not [path for path in (tmp_path / "refused").rglob("*") if path.is_file()]
    # The process is that of all tests: it has grown, and two gigabytes of it are told with two digits.
    budget_bytes = parse_size(match[1]) + 250_000_000
    folder = tmp_path / "enough"
    assert start(folder, "--mode", "train", "--max_steps", "1", "--memory_budget", str(budget_bytes)) == 0
    assert 1 in saved(folder)


def test_a_run_on_a_system_writes_its_params_when_its_session_is_ready(
    home: Path, params: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry.create(home, "lab", "10.0.0.1", "pipelined")
    folder = tmp_path / "out"
    words = ["--params", str(params), "--model_dir", str(folder), "--mode", "train", "--max_steps", "1"]
    words += ["--cs_ip", "10.0.0.1"]

    def refuse(*_: object) -> None:
        raise CerebrasError("refused")

    with monkeypatch.context() as patch:
        patch.setattr(TrainingSessionCreator, "create_session", refuse)
        assert run(MODEL, words) == 1
    assert not (folder / "train" / "params_train.yaml").exists()
    assert run(MODEL, words) == 0
    written = yaml.safe_load((folder / "train" / "params_train.yaml").read_text())
    assert written["runconfig"]["cs_ip"] == "10.0.0.1:9000"


def test_python_paths_make_user_modules_importable(home: Path, params: Path, tmp_path: Path) -> None:
    folder = tmp_path / "own"
    folder.mkdir()
    (folder / "h7_own_model.py").write_text(
        "from reference_implementations.gpt2.model import model_fn\n"
        "from reference_implementations.gpt2.data import eval_input_fn, train_input_fn\n"
    )
    names = ("model_fn", "train_input_fn", "eval_input_fn")
    own = ReferenceModel(sections=MODEL.sections, **{name: f"h7_own_model:{name}" for name in names})
    words = ["--params", str(params), "--model_dir", str(tmp_path / "out"), "--mode", "train", "--max_steps", "1"]
    assert run(own, [*words, "--python_paths", str(folder)]) == 0
    assert 1 in saved(tmp_path / "out")


def test_a_global_batch_size_replaces_the_batch_size(params: Path, home: Path, tmp_path: Path) -> None:
    words = ["--params", str(params), "--mode", "train", "--max_steps", "1"]
    assert run(MODEL, [*words, "--model_dir", str(tmp_path / "four")]) == 0
    content = yaml.safe_load(params.read_text())
    content["train_input"]["batch_size"] = 2
    content["runconfig"]["global_batch_size"] = 4
    params.write_text(yaml.safe_dump(content))
    assert run(MODEL, [*words, "--model_dir", str(tmp_path / "global")]) == 0
    one, other = (weights(saved(tmp_path / name)[1]) for name in ("four", "global"))
    assert [name for name in one if one[name].tobytes() != other[name].tobytes()] == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--mount_dirs", "/nowhere/at/all"], "mount_dirs: there is no folder '/nowhere/at/all' here"),
        (["--python_paths", "/nowhere"], "python_paths: there is no folder '/nowhere' here"),
        (["--job_labels", "gptj"], "job label 'gptj'; expected key=value"),
    ],
)
def test_a_missing_folder_or_malformed_label_is_refused(
    options: list[str], message: str, home: Path, params: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(MODEL, ["--params", str(params), "--model_dir", str(tmp_path / "out"), *options]) == 2
    assert message in capsys.readouterr().err


def test_cluster_options_reach_the_run_config(params: Path, tmp_path: Path) -> None:
    words = ["--params", str(params), "--model_dir", str(tmp_path), "--num_csx", "2", "--num_wgt_servers", "3"]
    words += ["--num_act_servers", "4", "--num_workers_per_csx", "5", "--mount_dirs", str(tmp_path), "/tmp"]
    words += ["--python_paths", str(tmp_path), "--job_labels", "model=gpt2", "run=1", "--cs_ip", "10.0.0.1"]
    options = run_module._parser().parse_args(words)
    loaded = load_params(options, MODEL.sections)
    settings = run_module.check_section(
        {key: value for key, value in loaded["runconfig"].items() if key != "model_dir"},
        MODEL.sections["runconfig"],
        "runconfig",
        "params",
    )
    config = run_module._make_estimator(
        lambda features, labels, mode, params: None, loaded, settings, tmp_path, print
    ).config
    csx = config.cs_config
    assert (csx.num_csx, csx.max_wgt_servers, csx.max_act_per_csx, csx.num_workers_per_csx) == (2, 3, 4, 5)
    assert csx.mount_dirs == [str(tmp_path), "/tmp"]
    assert csx.python_paths == [str(tmp_path)]
    assert csx.job_labels == ["model=gpt2", "run=1"]
    assert config.cs_ip == "10.0.0.1:9000"


def test_the_log_has_one_line_per_accumulated_step(
    start: Run, params: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    content = yaml.safe_load(params.read_text())
    content["optimizer"]["grad_accum_steps"] = 3
    content["runconfig"]["log_step_count_steps"] = 2
    params.write_text(yaml.safe_dump(content))
    caplog.set_level(logging.INFO)
    assert start(tmp_path / "out", "--mode", "train", "--max_steps", "4") == 0
    assert len([message for message in caplog.messages if ": loss" in message or ", loss" in message]) <= 4
    assert len([message for message in caplog.messages if "step 2:" in message or "step = 2," in message]) == 1


def test_a_run_on_hdf5_files_resumes_with_the_batch_after_the_last_one(
    start: Run, params: Path, tmp_path: Path
) -> None:
    content = yaml.safe_load(params.read_text())
    for section, name in (("train_input", "train"), ("eval_input", "eval")):
        text = Path(content[section].pop("data_file")).read_bytes()[:20_000]
        write_hdf5(windows(text, 16), str(tmp_path / name), samples_per_file=500)
        content[section] |= {"data_dir": name, "data_processor": "GptHDF5DataProcessor"}  # relative to the file
    params.write_text(yaml.safe_dump(content))
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    assert start(whole, "--mode", "train_and_eval", "--max_steps", "4") == 0
    for last in ("2", "4"):
        assert start(parts, "--mode", "train", "--max_steps", last) == 0
    ours, theirs = weights(saved(whole)[4]), weights(saved(parts)[4])
    for name, value in ours.items():
        np.testing.assert_array_equal(value, theirs[name], err_msg=name)


def test_a_head_starts_from_the_encoder_of_a_pre_training_run(home: Path, tmp_path: Path) -> None:
    bert = CONFIG.parent.parent.parent / "bert"
    paths = {}
    for name, folder in (("bert", bert), ("classifier", bert / "fine_tuning" / "classifier")):
        source = folder / "configs" / "params_tiny.yaml"
        content = yaml.safe_load(source.read_text())
        for section in ("train_input", "eval_input"):
            content[section]["data_file"] = str(source.parent / content[section]["data_file"])
            content[section]["batch_size"] = 4
        content["model"].update(hidden_size=32, num_hidden_layers=1, filter_size=64, num_heads=2)
        paths[name] = tmp_path / f"{name}.yaml"
        paths[name].write_text(yaml.safe_dump(content))
    first, second = tmp_path / "first", tmp_path / "second"
    words = ["--mode", "train", "--max_steps", "1"]
    assert run(BERT, ["--params", str(paths["bert"]), "--model_dir", str(first), *words]) == 0
    words += ["--checkpoint_path", str(saved(first)[1])]
    assert run(CLASSIFIER, ["--params", str(paths["classifier"]), "--model_dir", str(second), *words]) == 0
    given, begun = weights(saved(first)[1]), weights(saved(second)[0])
    encoder = [name for name in begun if name in given and "AdamW" not in name and "/" in name]
    assert len(encoder) == 25
    for name in encoder:
        np.testing.assert_array_equal(begun[name], given[name], err_msg=name)
