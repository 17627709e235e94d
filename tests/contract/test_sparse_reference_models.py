"""Each reference model trains with each method of sparsity: the same bits in both modes, all stores, several CSX."""

from __future__ import annotations

import importlib
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

import reference_implementations
from cerebras_tensorflow.converter.cli import main as convert
from cerebras_tensorflow.estimator.execution import store_choice
from cerebras_tensorflow.runtime.weight_store import remote
from cerebras_tensorflow.saver.checkpoint_reader import checkpoints_newest_first, open_checkpoint
from cerebras_tensorflow.sparsity import DynamicSparsityAlgorithm
from reference_implementations.common.run import PATH_KEYS, run
from tests.unit.runtime.weight_store.test_remote import weight_servers

pytestmark = pytest.mark.slow

FOLDER = Path(reference_implementations.__file__).parent
MODELS = ("bert", "gpt2", "gpt3", "gptj", "llama", "t5")
STEPS = 4


class Rolled(DynamicSparsityAlgorithm):
    """A method of a user: the mask moves by one row at each update."""

    def update_mask(self, p: Any, mask: Any, sparsity: Any) -> Any:
        return np.roll(mask, 1, axis=0)


METHODS: dict[str, dict[str, Any]] = {
    "static": {"sparsity": 0.75},
    "gmp": {"algorithm": "gmp", "schedule": {"type": "linear", "init": 0.25, "slope": 0.125}},
    "set": {"algorithm": "set", "sparsity": 0.75, "update": {"freq": 2}},
    "rigl": {"algorithm": "rigl", "sparsity": 0.75, "update": {"steps": [0, 1, 3]}, "drop_fraction": 0.5},
    "rolled": {"algorithm": "rolled", "sparsity": 0.75, "init_method": "topk"},
}
# Loads a checkpoint with the published package 2.6. Writes its masks and their weights.
READER = """
import sys
from unittest.mock import MagicMock

sys.modules["cerebras.pytorch.lib.cerebras_pytorch_lib"] = MagicMock()
import numpy as np
import cerebras.pytorch as cs

model = cs.load(sys.argv[1])["model"]
names = [name.removesuffix("_mask") for name in model if name.endswith("_mask")]
np.savez(sys.argv[2], **{key: np.asarray(model[key]) for name in names for key in (name, f"{name}_mask")})
"""
OTHER_STORES = ("memory", "mapped", "servers", "several_csx")

Train = Callable[..., dict[str, np.ndarray]]


@pytest.fixture
def train(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Train:
    """Trains a model with a section `sparsity` in a mode or store; returns the variables of the last checkpoint."""

    def begin(name: str, sparsity: Any, kind: str, max_steps: int = STEPS, **runconfig: Any) -> Any:
        config = FOLDER / name / "configs" / "params_tiny.yaml"
        content: dict[str, Any] = yaml.safe_load(config.read_text())
        for section in ("train_input", "eval_input"):
            for key in PATH_KEYS:
                if key in content[section]:
                    content[section][key] = str(config.parent / content[section][key])
            content[section]["batch_size"] = 4
        content["model"] |= {key: 2 for key in content["model"] if key.endswith("num_hidden_layers")}
        content["runconfig"] |= {"save_checkpoints_steps": 2, "max_steps": max_steps, "save_summary_steps": 0}
        content["runconfig"] |= runconfig
        store = {"mapped": "file", "several_csx": "file"}.get(kind, kind)
        content["csconfig"] = {"min_stream_bytes": 4096}
        if kind != "pipelined":
            content["csconfig"]["weight_store"] = store
        content["sparsity"] = sparsity
        folder = tmp_path / f"{kind}{len(runconfig)}"
        params = tmp_path / "params.yaml"
        params.write_text(yaml.safe_dump(content))
        monkeypatch.setenv("CEREBRAS_EXECUTION_MODE", "pipelined" if kind == "pipelined" else "weight_streaming")
        with monkeypatch.context() as patched:
            if kind == "file":
                patched.setattr(store_choice, "MEMORY_SHARE", 0.0)
            model = importlib.import_module(f"reference_implementations.{name}.run").MODEL
            assert run(model, ["--params", str(params), "--model_dir", str(folder), "--mode", "train"]) == 0
        with open_checkpoint(checkpoints_newest_first(folder)[0]) as reader:
            return {key: reader.read(key) for key in reader.names()}

    return begin


def differing(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> list[str]:
    assert one.keys() == other.keys()
    return [name for name in one if one[name].tobytes() != other[name].tobytes()]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("model", MODELS)
def test_each_method_has_the_same_bits_everywhere(
    model: str, method: str, train: Train, monkeypatch: pytest.MonkeyPatch
) -> None:
    sparsity = METHODS[method]
    expected = train(model, sparsity, "pipelined")
    # BERT's tiny config has no loss of the next sentence, so the masks of that head stay as they start.
    masks = [name for name in expected if name.endswith("_mask") and not name.startswith("cls_layer")]
    assert masks
    for name in masks:
        mask = expected[name]
        assert abs((~mask).mean() - 0.75) < 0.01, name
        weight = name.removesuffix("_mask")
        for each, value in expected.items():
            if each.startswith(weight) and each != name and value.shape == mask.shape:
                assert not value[~mask].any(), each
    train(model, sparsity, "file", max_steps=2)
    assert differing(expected, train(model, sparsity, "file")) == []  # resumed
    kind = OTHER_STORES[(MODELS.index(model) + list(METHODS).index(method)) % len(OTHER_STORES)]
    if kind == "several_csx":
        parts: dict[str, Any] = {"micro_batch_size": 2, "global_batch_size": 4}  # BERT and T5 draw masks for a batch
        expected = train(model, sparsity, "pipelined", **parts)
        assert differing(expected, train(model, sparsity, kind, **parts, num_csx=2)) == []
        return
    with weight_servers(1) as addresses:
        monkeypatch.setattr(remote, "start_weight_servers", lambda: addresses)
        assert differing(expected, train(model, sparsity, kind)) == []


@pytest.mark.interop
@pytest.mark.parametrize("model", ["gpt2", "gptj", "llama", "t5"])  # not BERT's tiny config: it has no next sentence
def test_the_published_package_reads_the_masks_of_a_converted_checkpoint(
    model: str, train: Train, tmp_path: Path, published_python: str
) -> None:
    pytest.importorskip("torch")
    ours = train(model, METHODS["static"], "pipelined", max_steps=1)
    words = ["convert", "--model", model, "--src-fmt", "tf", "--tgt-fmt", "cs-2.6"]
    folders = ["--output-dir", str(tmp_path / "cs"), "--config", str(tmp_path / "params.yaml")]
    assert convert([*words, *folders, checkpoints_newest_first(tmp_path / "pipelined0")[0]]) == 0
    (converted,) = (tmp_path / "cs").glob("*.mdl")
    subprocess.run([published_python, "-c", READER, converted, tmp_path / "masks.npz"], check=True)
    with np.load(tmp_path / "masks.npz") as theirs:
        masks = {name: theirs[name] for name in theirs.files if name.endswith("_mask")}
        for name, mask in masks.items():
            assert mask.dtype == bool
            assert not theirs[name.removesuffix("_mask")][~mask].any(), name
    expected = [value for name, value in ours.items() if name.endswith("_mask")]
    assert sorted(map(np.count_nonzero, masks.values())) == sorted(map(np.count_nonzero, expected))
