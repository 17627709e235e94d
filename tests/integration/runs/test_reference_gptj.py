"""GPT-J's run.py as a user starts it, on a smaller model: it learns, resumes, and runs alike in both modes."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from cerebras_tensorflow.saver.checkpoint_reader import open_checkpoint

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / "reference_implementations" / "gptj"
BYTE_ENTROPY = 3.134  # nats; reference_implementations/data/README.md


@pytest.fixture
def params(tmp_path: Path) -> Path:
    """The tiny config, smaller."""
    content: dict[str, Any] = yaml.safe_load((FOLDER / "configs" / "params_tiny.yaml").read_text())
    for section in ("train_input", "eval_input"):
        content[section]["data_file"] = str(FOLDER / "configs" / content[section]["data_file"])
        content[section].update(batch_size=8, max_sequence_length=32)
    content["model"].update(hidden_size=64, num_hidden_layers=2, filter_size=128, num_heads=2, rotary_dim=16)
    content["optimizer"]["learning_rate"] = {
        "scheduler": "Cosine",
        "initial_learning_rate": 1e-2,
        "decay_steps": 100,
    }
    content["runconfig"].update(save_checkpoints_steps=20, eval_steps=5)
    path = tmp_path / "params.yaml"
    path.write_text(yaml.safe_dump(content))
    return path


@pytest.fixture
def run_script(params: Path, warm_python: list[str]) -> Callable[..., str]:
    """Runs run.py to its end; returns what it wrote."""

    def run(model_dir: Path, mode: str, *arguments: str) -> str:
        environ = {**os.environ, "CEREBRAS_EXECUTION_MODE": mode, "PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "3"}
        words = [*warm_python, "run.py", "--params", str(params), "--model_dir", str(model_dir), *arguments]
        result = subprocess.run(words, cwd=FOLDER, env=environ, capture_output=True, text=True, timeout=300)
        assert result.returncode == 0, result.stdout + result.stderr
        return result.stdout + result.stderr

    return run


def final_loss(output: str) -> float:
    match = re.search(r"Loss for final step: ([0-9.]+)", output)
    assert match, output
    return float(match[1].rstrip("."))


def weights(checkpoint: Path) -> dict[str, np.ndarray]:
    with open_checkpoint(checkpoint) as reader:
        return {name: reader.read(name) for name in reader.names()}


def test_the_loss_falls_below_the_byte_entropy_and_a_resumed_run_ends_with_the_same_bits(
    home: Path, run_script: Callable[..., str], tmp_path: Path
) -> None:
    whole = run_script(tmp_path / "whole", "pipelined", "--max_steps", "60")
    assert final_loss(whole) < BYTE_ENTROPY - 0.3

    run_script(tmp_path / "parts", "weight_streaming", "--max_steps", "25")
    resumed = run_script(tmp_path / "parts", "weight_streaming", "--max_steps", "60")
    assert final_loss(resumed) == final_loss(whole)
    ours, theirs = weights(tmp_path / "whole" / "model.ckpt-60"), weights(tmp_path / "parts" / "model-ckpt-60")
    assert ours.keys() == theirs.keys()
    for name, value in ours.items():
        np.testing.assert_array_equal(value, theirs[name], err_msg=name)

    written = yaml.safe_load((tmp_path / "parts" / "train" / "params_train.yaml").read_text())
    assert written["train_input"]["skip_steps"] == 25
    run_script(tmp_path / "parts", "weight_streaming", "--max_steps", "60")  # nothing left to do

    evaluated = run_script(tmp_path / "parts", "pipelined", "--mode", "eval")
    assert "lm_perplexity" in evaluated
    run_script(tmp_path / "parts", "pipelined", "--mode", "predict")
    with np.load(tmp_path / "parts" / "predictions.npz") as predictions:
        assert predictions["next_token"].shape == (40, 32)
