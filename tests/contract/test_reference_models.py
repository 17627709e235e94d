"""Every reference implementation trains, evaluates, predicts and resumes in both modes, to the same bits."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

import reference_implementations
from cerebras_tensorflow.saver.checkpoint_reader import checkpoints_newest_first, open_checkpoint
from reference_implementations.common.run import PATH_KEYS, run

pytestmark = pytest.mark.slow

FOLDER = Path(reference_implementations.__file__).parent
# Every model with a tiny config is tested.
CONFIGS = sorted(FOLDER.glob("**/configs/params_tiny.yaml"))


def weights(folder: Path) -> dict[str, np.ndarray]:
    with open_checkpoint(checkpoints_newest_first(folder)[0]) as reader:
        return {name: reader.read(name) for name in reader.names()}


@pytest.mark.parametrize("config", CONFIGS, ids=lambda path: "-".join(path.relative_to(FOLDER).parts[:-2]))
def test_both_modes_train_evaluate_and_predict_alike(
    config: Path, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = ".".join(config.relative_to(FOLDER).parts[:-2])
    model = importlib.import_module(f"reference_implementations.{name}.run").MODEL
    content: dict[str, Any] = yaml.safe_load(config.read_text())
    for section in ("train_input", "eval_input"):
        for key in PATH_KEYS:
            if key in content[section]:
                content[section][key] = str(config.parent / content[section][key])
        content[section]["batch_size"] = 4
    content["runconfig"] |= {"save_checkpoints_steps": 2, "eval_steps": 2, "max_steps": 4, "save_summary_steps": 0}
    content["csconfig"] = {"min_stream_bytes": 4096}
    params = tmp_path / "params.yaml"
    params.write_text(yaml.safe_dump(content))
    weights_by_mode = {}
    for mode in ("pipelined", "weight_streaming"):
        monkeypatch.setenv("CEREBRAS_EXECUTION_MODE", mode)
        folder = tmp_path / mode
        words = ["--params", str(params), "--model_dir", str(folder)]
        if mode == "weight_streaming":  # in two runs
            assert run(model, [*words, "--mode", "train", "--max_steps", "2"]) == 0
        assert run(model, [*words, "--mode", "train_and_eval"]) == 0
        assert run(model, [*words, "--mode", "eval_all"]) == 0
        assert run(model, [*words, "--mode", "predict"]) == 0
        with np.load(folder / "predictions.npz") as predictions:
            weights_by_mode[mode] = weights(folder) | {f"predicted {key}": value for key, value in predictions.items()}
    assert weights_by_mode["pipelined"].keys() == weights_by_mode["weight_streaming"].keys()
    assert weights_by_mode["pipelined"]["global_step"] == 4
    for key, value in weights_by_mode["pipelined"].items():
        assert value.tobytes() == weights_by_mode["weight_streaming"][key].tobytes(), key
