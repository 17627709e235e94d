"""A GPT-2 trained here and converted has the same loss in transformers, and generates text."""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from cerebras_tensorflow.converter.cli import main
from reference_implementations.common import run as run_module
from reference_implementations.common.run import run
from reference_implementations.gpt2.run import MODEL

pytestmark = [
    pytest.mark.interop,
    # torch and transformers warn about themselves.
    pytest.mark.filterwarnings("ignore"),
]

FOLDER = Path(run_module.__file__).parent.parent
CONFIG = FOLDER / "gpt2" / "configs" / "params_tiny.yaml"
EVAL_STEPS, BATCH, SEQUENCE = 5, 8, 64


def test_a_gpt2_trained_here_writes_text_in_transformers(
    home: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    monkeypatch.setenv("CEREBRAS_EXECUTION_MODE", "weight_streaming")
    content: dict[str, Any] = yaml.safe_load(CONFIG.read_text())
    for section in ("train_input", "eval_input"):
        content[section]["data_file"] = str(CONFIG.parent / content[section]["data_file"])
        content[section].update(batch_size=BATCH, max_sequence_length=SEQUENCE)
    content["model"].update(hidden_size=96, num_hidden_layers=2, filter_size=384)
    content["runconfig"] |= {"eval_steps": EVAL_STEPS, "max_steps": 80}
    params = tmp_path / "params.yaml"
    params.write_text(yaml.safe_dump(content))
    caplog.set_level(logging.INFO)
    assert run(MODEL, ["-p", str(params), "-o", str(tmp_path / "run"), "-m", "train_and_eval"]) == 0
    ours = float(re.findall(r"Saving dict for global step 80: .*loss = ([0-9.]+)", caplog.text)[-1])

    folder = tmp_path / "hf"
    words = ["convert", "--model", "gpt2", "--src-fmt", "tf", "--tgt-fmt", "hf", "--output-dir", str(folder)]
    words += ["--config", str(tmp_path / "run" / "train" / "params_train.yaml"), "--export-safetensors", "--verify"]
    assert main([*words, str(tmp_path / "run" / "model-ckpt-80")]) == 0
    (folder / "model-ckpt-80_to_hf.safetensors").rename(folder / "model.safetensors")
    (folder / "params_train_to_hf.json").rename(folder / "config.json")
    model = transformers.GPT2LMHeadModel.from_pretrained(folder).eval()

    text = np.frombuffer((FOLDER / "data" / "paradise_lost_eval.txt").read_bytes(), np.uint8).astype(np.int64)
    windows = np.stack([text[k * SEQUENCE : (k + 1) * SEQUENCE + 1] for k in range(EVAL_STEPS * BATCH)])
    with torch.no_grad():
        logits = model(torch.from_numpy(windows[:, :-1])).logits
        loss = torch.nn.functional.cross_entropy(logits.reshape(-1, 256), torch.from_numpy(windows[:, 1:].reshape(-1)))
    assert loss.item() == pytest.approx(ours, abs=1e-4)
    assert ours < 3.0  # below the entropy of single bytes, 3.13

    prompt = torch.from_numpy(np.frombuffer(b"Of Mans First Disobedience", np.uint8).astype(np.int64)[None])
    generated = model.generate(prompt, max_new_tokens=32, do_sample=False, pad_token_id=0, eos_token_id=None)
    written = bytes(generated[0, prompt.shape[1] :].numpy().astype(np.uint8).tolist()).decode("ascii")
    assert len(written) == 32
    assert re.fullmatch(r"[A-Za-z ,.;:'\n-]+", written)
    assert " " in written
