"""Scripts in the style of each release run from end to end, started as their users started them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import cerebras_tensorflow

ROOT = Path(cerebras_tensorflow.__file__).parents[1]
WHEEL = ROOT / "cerebras_tensorflow" / "compat" / "roots" / "wheel"
SCRIPTS = Path(__file__).parent / "scripts"
LAUNCH = "import sys; from csrun.cli import csrun_wse; sys.exit(csrun_wse())"


def run(tmp_path: Path, words: list[str], path: list[Path]) -> str:
    environ = {name: value for name, value in os.environ.items() if name != "TF_USE_LEGACY_KERAS"}
    environ.update(
        PYTHONPATH=os.pathsep.join(map(str, path)), CEREBRAS_HOME=str(tmp_path / "home"), TF_CPP_MIN_LOG_LEVEL="3"
    )
    done = subprocess.run(words, env=environ, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return done.stdout + done.stderr


def container(tmp_path: Path, interpreter: str, *arguments: str) -> str:
    """Run the 1.6 script under csrun_wse."""
    script = str(SCRIPTS / "release_1_6.py")
    words = [sys.executable, "-c", LAUNCH, interpreter, script, "-o", str(tmp_path / "model"), *arguments]
    return run(tmp_path, words, [ROOT])


def appliance(tmp_path: Path, *arguments: str) -> str:
    """Run the 1.8 script by plain Python, as after pip install."""
    script = str(SCRIPTS / "release_1_8.py")
    words = [sys.executable, script, *arguments, "-o", str(tmp_path / "model")]
    return run(tmp_path, words, [WHEEL, ROOT])


@pytest.mark.slow
@pytest.mark.parametrize("interpreter, is_streaming", [("python", False), ("python-ws", True)])
def test_release_1_6_runs_in_both_modes(tmp_path: Path, interpreter: str, is_streaming: bool) -> None:
    text = container(tmp_path, interpreter, "-m", "train", "--max_steps", "6")
    assert f"BASE CerebrasEstimator {is_streaming}" in text
    assert "WEIGHTS 6 3" in text
    assert "matching.kernel.autogen_config.always_store_inputs" in text
    text = container(tmp_path, interpreter, "-m", "eval")
    assert "RESULT ['eval/accuracy', 'global_step', 'loss']" in text
    text = container(tmp_path, interpreter, "-m", "eval_all")
    assert [line for line in text.splitlines() if line.startswith("RESULT")] == ["RESULT 0", "RESULT 3", "RESULT 6"]
    assert "RESULT 5" in container(tmp_path, interpreter, "-m", "predict")


@pytest.mark.slow
@pytest.mark.parametrize("interpreter", ["python", "python-ws"])
@pytest.mark.parametrize("option", ["--compile_only", "--validate_only"])
def test_release_1_6_compiles(tmp_path: Path, interpreter: str, option: str) -> None:
    container(tmp_path, interpreter, "-m", "train", option)
    folders = list((tmp_path / "model").glob("tfcs_*"))
    assert len(folders) == (1 if option == "--compile_only" else 0)


@pytest.mark.slow
@pytest.mark.parametrize("interpreter", ["python", "python-ws"])
@pytest.mark.parametrize("scale", ["8", "dynamic"])
def test_release_1_6_with_mixed_precision_and_loss_scaling(tmp_path: Path, interpreter: str, scale: str) -> None:
    text = container(tmp_path, interpreter, "-m", "train", "--mixed_precision", "--loss_scaling", scale)
    assert "WEIGHTS 6 3" in text


@pytest.mark.slow
@pytest.mark.parametrize("interpreter", ["python", "python-ws"])
def test_release_1_6_trains_and_evaluates_in_turn(tmp_path: Path, interpreter: str) -> None:
    assert container(tmp_path, interpreter, "-m", "train_and_eval").count("Saving dict for global step") == 2


@pytest.mark.slow
def test_release_1_6_warm_starts_from_a_path(tmp_path: Path) -> None:
    container(tmp_path, "python", "-m", "train", "--max_steps", "3")
    source = tmp_path / "model" / "model.ckpt-3"
    other = tmp_path / "other"
    other.mkdir()
    text = container(other, "python", "-m", "train", "--max_steps", "1", "--checkpoint_path", str(source))
    assert "Warm-starting" in text


@pytest.mark.slow
@pytest.mark.parametrize(
    "target, name",
    [
        (["CPU"], "model.ckpt-6.index"),
        (["CSX", "pipeline"], "model.ckpt-6.index"),
        (["CSX", "weight_streaming"], "model-ckpt-6.h5"),  # 1.8's scripts read it with CheckpointReader
    ],
    ids=["cpu", "pipeline", "weight_streaming"],
)
def test_release_1_8_runs_on_each_target(tmp_path: Path, target: list[str], name: str) -> None:
    appliance(tmp_path, *target, "-m", "train")
    assert (tmp_path / "model" / name).exists()
    text = appliance(tmp_path, *target, "-m", "eval_all")
    lines = [line for line in text.splitlines() if line.startswith("RESULT")]
    assert lines == [f"RESULT {step} ['eval/accuracy', 'global_step', 'loss']" for step in (0, 3, 6)]


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["pipeline", "weight_streaming"])
@pytest.mark.parametrize("option", ["--compile_only", "--validate_only"])
def test_release_1_8_compiles(tmp_path: Path, strategy: str, option: str) -> None:
    appliance(tmp_path, "CSX", strategy, "-m", "train", option)
    folders = list((tmp_path / "model" / "compiled").glob("tfcs_*"))
    assert len(folders) == (1 if option == "--compile_only" else 0)


@pytest.mark.slow
@pytest.mark.parametrize("interpreter", ["python", "python-ws"])
def test_a_plain_tensorflow_1_script_runs(tmp_path: Path, interpreter: str) -> None:
    script = str(SCRIPTS / "plain_estimator.py")
    text = run(
        tmp_path, [sys.executable, "-c", LAUNCH, interpreter, script, "--model_dir", str(tmp_path / "model")], [ROOT]
    )
    assert "RESULT ['acc', 'auc', 'fn', 'global_step', 'loss'] 6" in text
    assert "ROWS 64" in text
    for name in ("ex", "ex2", "export/best"):
        assert len(list((tmp_path / "model" / name).iterdir())) == 1
    assert "True" in next(line for line in text.splitlines() if line.startswith("CK"))


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["float32", "mixed_float16", "mixed_bfloat16"])
@pytest.mark.parametrize("name", ["segmentation", "translation"])
def test_segmentation_and_translation_give_the_same_losses_in_both_modes(
    tmp_path: Path, name: str, policy: str
) -> None:
    script = str(SCRIPTS / f"{name}.py")
    printed = {}
    for interpreter in ("python", "python-ws"):
        folder = str(tmp_path / interpreter)
        words = [sys.executable, "-c", LAUNCH, interpreter, script, "--policy", policy, "-o", folder]
        text = run(tmp_path, [*words, "-m", "train"], [ROOT])
        losses = re.findall(r"loss = ([\d.]+) \(", text)
        text = run(tmp_path, [*words, "-m", "eval_all"], [ROOT])
        printed[interpreter] = [*losses, *(line for line in text.splitlines() if line.startswith("RESULT"))]
    # keep_checkpoint_max is 0: as in TensorFlow, the state then lists the newest checkpoint only.
    assert len(printed["python"]) == 4 + 1
    assert printed["python"] == printed["python-ws"]
