"""A model of transformers, converted, is evaluated and predicts by our run.py, from step 0, with no training before."""

from __future__ import annotations

import importlib
import logging
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from cerebras_tensorflow.converter.cli import main
from reference_implementations.common import run as run_module
from reference_implementations.common.run import run

pytestmark = [
    pytest.mark.interop,
    # torch and transformers warn about themselves.
    pytest.mark.filterwarnings("ignore"),
]

FOLDER = Path(run_module.__file__).parent.parent
VOCABULARY = 288  # bytes, and the extra tokens of BERT and T5
TOKENS = {"bos_token_id": 0, "eos_token_id": 0}


def gpt2(transformers: Any) -> Any:
    config = transformers.GPT2Config(vocab_size=VOCABULARY, n_embd=32, n_layer=2, n_head=4, n_positions=128, **TOKENS)
    return transformers.GPT2LMHeadModel(config)


def gptj(transformers: Any) -> Any:
    sizes = {"vocab_size": VOCABULARY, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 128, "rotary_dim": 4}
    return transformers.GPTJForCausalLM(transformers.GPTJConfig(**sizes, **TOKENS))


def bert(transformers: Any) -> Any:
    config = transformers.BertConfig(
        vocab_size=VOCABULARY,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=48,
        max_position_embeddings=64,
    )
    return transformers.BertForPreTraining(config)


def llama(transformers: Any) -> Any:
    config = transformers.LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        intermediate_size=48,
        max_position_embeddings=128,
        **TOKENS,
    )
    return transformers.LlamaForCausalLM(config)


def t5(transformers: Any) -> Any:
    sizes = {"vocab_size": VOCABULARY, "d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4}
    return transformers.T5ForConditionalGeneration(transformers.T5Config(**sizes, pad_token_id=0))


FAMILIES: dict[str, Callable[[Any], Any]] = {"gpt2": gpt2, "gptj": gptj, "bert": bert, "llama": llama, "t5": t5}


@pytest.mark.parametrize("family", FAMILIES)
def test_a_converted_model_is_evaluated_and_predicts(
    family: str, home: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    transformers = pytest.importorskip("transformers")
    theirs = tmp_path / "theirs"
    FAMILIES[family](transformers).save_pretrained(theirs)
    words = [
        "convert",
        "--model",
        family,
        "--src-fmt",
        "hf",
        "--tgt-fmt",
        "tf",
        "--config",
        str(theirs / "config.json"),
    ]
    assert main([*words, "--output-dir", str(tmp_path / "ours"), str(theirs / "model.safetensors")]) == 0
    (index,) = (tmp_path / "ours").glob("*.index")
    (config,) = (tmp_path / "ours").glob("*.yaml")

    tiny = FOLDER / family / "configs" / "params_tiny.yaml"
    content: dict[str, Any] = yaml.safe_load(tiny.read_text())
    content["model"] |= yaml.safe_load(config.read_text())["model"]
    for section in ("train_input", "eval_input"):
        for key in {"data_file", "data_dir"} & set(content[section]):
            content[section][key] = str(tiny.parent / content[section][key])
    params = tmp_path / "params.yaml"
    params.write_text(yaml.safe_dump(content))
    model = importlib.import_module(f"reference_implementations.{family}.run").MODEL
    caplog.set_level(logging.INFO)
    words = ["-p", str(params), "-o", str(tmp_path / "run"), "--checkpoint_path", str(index.with_suffix(""))]
    assert run(model, [*words, "-m", "eval", "--eval_steps", "2"]) == 0
    loss = float(re.findall(r"Saving dict for global step 0: .*loss = ([0-9.]+)", caplog.text)[-1])
    assert 0 < loss < 4 * math.log(VOCABULARY)
    assert run(model, [*words, "-m", "predict", "--eval_steps", "2"]) == 0
    assert (tmp_path / "run" / "predictions.npz").is_file()
