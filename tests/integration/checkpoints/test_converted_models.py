"""A model of transformers, converted, is evaluated by our run.py and predicts as before, without any training."""

from __future__ import annotations

import importlib
import logging
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from cerebras_tensorflow.converter.cli import main
from cerebras_tensorflow.converter.models import MODELS
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


def bert(transformers: Any, kind: str = "PreTraining", **settings: Any) -> Any:
    config = transformers.BertConfig(
        vocab_size=VOCABULARY,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=48,
        max_position_embeddings=128,
        **settings,
    )
    return getattr(transformers, f"BertFor{kind}")(config)


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


def next_token(result: Any, _features: dict[str, Any]) -> dict[str, Any]:
    return {"next_token": result.logits}


def masked_tokens(result: Any, features: dict[str, Any]) -> dict[str, Any]:
    rows = np.arange(len(features["input_ids"]))[:, None]
    masked = result.prediction_logits[rows, features["masked_lm_positions"].numpy()]
    return {"masked_lm_ids": masked, "next_sentence": result.seq_relationship_logits}


def span(result: Any, _features: dict[str, Any]) -> dict[str, Any]:
    return {"start_position": result.start_logits, "end_position": result.end_logits}


FINE_TUNING = "bert/fine_tuning"
ONE_LABEL = {"num_labels": 2, "problem_type": "single_label_classification"}
FAMILIES: dict[str, tuple[str, Callable[[Any], Any], Callable[[Any, dict[str, Any]], dict[str, Any]]]] = {
    # model of the converter: folder of ours, model of theirs, logits of theirs by the names of our predictions
    "gpt2": ("gpt2", gpt2, next_token),
    "gptj": ("gptj", gptj, next_token),
    "llama": ("llama", llama, next_token),
    "t5": ("t5", t5, next_token),
    "bert": ("bert", bert, masked_tokens),
    "bert-sequence-classifier": (
        f"{FINE_TUNING}/classifier",
        lambda transformers: bert(transformers, "SequenceClassification", **ONE_LABEL),
        lambda result, _: {"label": result.logits},
    ),
    "bert-token-classifier": (
        f"{FINE_TUNING}/token_classifier",
        lambda transformers: bert(transformers, "TokenClassification", num_labels=2),
        lambda result, _: {"labels": result.logits},
    ),
    "bert-q&a": (f"{FINE_TUNING}/qa", lambda transformers: bert(transformers, "QuestionAnswering"), span),
}


def test_every_family_with_a_reference_model_is_tested() -> None:
    same = {"bert-qa": "bert-q&a"}  # two names of one model
    # BertModel has no head: it is a start for training.
    evaluated = {same.get(name, name) for name, model in MODELS.items() if {"hf", "tf"} <= {*model.formats}}
    assert evaluated - {"bert-headless"} == FAMILIES.keys()


def predicted_by_transformers(family: str, theirs: Any, batches: list[dict[str, Any]]) -> dict[str, Any]:
    """The predictions of a model of transformers, by the names of ours."""
    torch = pytest.importorskip("torch")
    columns: dict[str, list[Any]] = {}
    for batch in batches:
        features = {name: torch.from_numpy(value) for name, value in batch.items()}
        words = {"input_ids": features["input_ids"].long()}
        if family == "t5":
            words["decoder_input_ids"] = features["decoder_input_ids"].long()
        if family.startswith("bert"):
            words |= {"attention_mask": features["input_mask"], "token_type_ids": features["segment_ids"]}
        with torch.no_grad():
            result = theirs.eval()(**words)
        for name, logits in FAMILIES[family][2](result, features).items():
            columns.setdefault(name, []).append(logits.numpy().argmax(-1))
    return {name: np.concatenate(values) for name, values in columns.items()}


@pytest.mark.parametrize("family", FAMILIES)
def test_a_converted_model_is_evaluated_and_predicts_as_before(
    family: str, home: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    place, build, _ = FAMILIES[family]
    torch.manual_seed(3)
    theirs = build(transformers)
    with torch.no_grad():
        for value in theirs.parameters():  # so that predictions differ between tokens
            if value.dim() > 1:
                value.normal_(0, 0.3)
            else:
                value.add_(0.1 * torch.randn_like(value))
    theirs.save_pretrained(tmp_path / "theirs")
    words = ["convert", "--model", family, "--src-fmt", "hf", "--tgt-fmt", "tf", "--output-dir", str(tmp_path / "ours")]
    files = ("--config", str(tmp_path / "theirs" / "config.json"), str(tmp_path / "theirs" / "model.safetensors"))
    assert main([*words, *files]) == 0
    (index,) = (tmp_path / "ours").glob("*.index")
    (config,) = (tmp_path / "ours").glob("*.yaml")

    tiny = FOLDER / place / "configs" / "params_tiny.yaml"
    content: dict[str, Any] = yaml.safe_load(tiny.read_text())
    content["model"] |= yaml.safe_load(config.read_text())["model"]
    for section in ("train_input", "eval_input"):
        for key in {"data_file", "data_dir"} & set(content[section]):
            content[section][key] = str(tiny.parent / content[section][key])
    params = tmp_path / "params.yaml"
    params.write_text(yaml.safe_dump(content))
    model = importlib.import_module(f"reference_implementations.{place.replace('/', '.')}.run").MODEL
    caplog.set_level(logging.INFO)
    words = ["-p", str(params), "-o", str(tmp_path / "run"), "--checkpoint_path", str(index.with_suffix(""))]
    assert run(model, [*words, "-m", "eval", "--eval_steps", "2"]) == 0
    assert float(re.findall(r"Saving dict for global step 0: .*loss = ([0-9.]+)", caplog.text)[-1]) > 0
    assert run(model, [*words, "-m", "predict", "--eval_steps", "2"]) == 0

    data = model.input_fn("infer")(model.read_params(str(params))).take(2)
    expected = predicted_by_transformers(family, theirs, [features for features, _ in data.as_numpy_iterator()])
    with np.load(tmp_path / "run" / "predictions.npz") as ours:
        for name, value in expected.items():
            # Rounding may decide between two logits that are almost equal.
            assert np.mean(ours[name] == value) > 0.99, name
            assert len(np.unique(value)) > 1
