"""Samples of BERT and T5 made by the script: their content, and that the tiny configs learn from them."""

from __future__ import annotations

import importlib
import logging
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from cerebras_tensorflow.errors import SettingsError
from reference_implementations.bert import records as pairs
from reference_implementations.common.run import run
from reference_implementations.t5 import records as spans

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / "reference_implementations"
TEXT = FOLDER / "data" / "paradise_lost_eval.txt"
S, P = 32, 5


def document(start: int) -> list[list[int]]:
    """Ten lines of seven tokens, all tokens from `start` on in order."""
    return [list(range(start + 7 * line, start + 7 * line + 7)) for line in range(10)]


def restored(sample: dict[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """The two pieces as they were before masking."""
    ids = sample["input_ids"].copy()
    real = sample["masked_lm_weights"] > 0
    ids[sample["masked_lm_positions"][real]] = sample["masked_lm_ids"][real]
    first_end, second_end = np.flatnonzero(ids == pairs.SEPARATOR)
    assert ids[0] == pairs.CLASS
    np.testing.assert_array_equal(sample["input_mask"], np.arange(S) <= second_end)
    np.testing.assert_array_equal(sample["segment_ids"], (np.arange(S) > first_end) & (np.arange(S) <= second_end))
    assert np.all(ids[second_end + 1 :] == pairs.PADDING)
    return ids[1:first_end], ids[first_end + 1 : second_end]


@pytest.mark.parametrize("documents", [[document(0)], [document(0), document(100)]], ids=["one", "two"])
def test_pieces_are_runs_of_the_text_and_labels_match_their_order(documents: list[Any]) -> None:
    samples = [sample for seed in range(40) for sample in pairs.pair_records(documents, S, P, seed=seed)]
    labels = []
    for sample in samples:
        first, second = restored(sample)
        assert np.all(np.diff(first) == 1) and np.all(np.diff(second) == 1)
        follows = second[0] == first[-1] + 1
        (label,) = sample[pairs.NEXT_SENTENCE]
        labels.append(label)
        assert follows == (label == pairs.IS_NEXT)
        if len(documents) > 1 and label == pairs.IS_RANDOM:
            assert first[0] // 100 != second[0] // 100
    assert 0.35 < np.mean(labels) < 0.75
    starts = {int(restored(sample)[0][0]) for sample in samples}
    assert starts >= {lines[0][0] for lines in documents}


def test_15_percent_of_tokens_are_masked_most_by_the_mask_token() -> None:
    samples = [sample for seed in range(60) for sample in pairs.pair_records([document(0)], S, P, seed=seed)]
    shown = changed = 0
    for sample in samples:
        real = sample["masked_lm_weights"] > 0
        length = int(sample["input_mask"].sum()) - 3
        assert real.sum() == min(P, max(1, round(0.15 * length)))
        now = sample["input_ids"][sample["masked_lm_positions"][real]]
        assert len(set(sample["masked_lm_positions"][real])) == real.sum()
        assert np.all((now < 256) | (now == pairs.MASK))
        shown += len(now)
        changed += int(np.sum(now == pairs.MASK))
    assert 0.72 < changed / shown < 0.88


def test_t5s_sizes_are_those_of_the_paper_and_fill_every_sample() -> None:
    assert spans.span_sizes(512) == spans.SpanSizes(text=568, missing=85, spans=28)
    assert spans.span_sizes(512).targets == 114
    for sequence in range(4, 200):
        assert spans.span_sizes(sequence).inputs == sequence


def test_replacing_sentinels_by_their_spans_restores_the_text() -> None:
    sizes = spans.span_sizes(24)
    tokens = [number % 251 for number in range(1000)]
    samples = list(spans.span_records(tokens, sizes, seed=3))
    assert len(samples) == 1000 // sizes.text
    text: list[int] = []
    for sample in samples:
        assert len(sample["input_ids"]) == 24
        assert len(sample["labels"]) == len(sample["decoder_input_ids"]) == sizes.targets
        assert sample["input_ids"][-1] == sample["labels"][-1] == spans.END
        assert sample["decoder_input_ids"][0] == spans.START
        np.testing.assert_array_equal(sample["decoder_input_ids"][1:], sample["labels"][:-1])
        missing: dict[int, list[int]] = {}
        for token in sample["labels"][:-1].tolist():
            if token >= spans.FIRST_SENTINEL:
                missing[token] = []
            else:
                missing[max(missing)].append(token)
        assert list(missing) == list(range(spans.FIRST_SENTINEL, spans.FIRST_SENTINEL + sizes.spans))
        assert all(missing.values())
        text += [byte for token in sample["input_ids"][:-1].tolist() for byte in missing.get(token, [token])]
    assert text == tokens[: len(text)]


def test_the_same_seed_makes_the_same_samples() -> None:
    def both(seed: int) -> list[dict[str, np.ndarray]]:
        return [
            *pairs.pair_records([document(0)], S, P, seed=seed),
            *spans.span_records(range(200), spans.span_sizes(24), seed=seed),
        ]

    for ours, theirs in zip(both(1), both(1), strict=True):
        for name, value in ours.items():
            np.testing.assert_array_equal(value, theirs[name], err_msg=name)
    assert any(not np.array_equal(a["input_ids"], b["input_ids"]) for a, b in zip(both(1), both(2), strict=False))


def test_impossible_settings_are_refused() -> None:
    with pytest.raises(SettingsError, match="expected at least 5, and 1 to max_seq_length - 3 = 5"):
        next(pairs.pair_records([document(0)], 8, 6))
    with pytest.raises(SettingsError, match="less than two lines"):
        next(pairs.pair_records([[[1, 2, 3]]], S, P))
    with pytest.raises(SettingsError, match=r"no token \[SEP\]"):
        pairs.vocabulary_of({"[CLS]": 0})
    with pytest.raises(SettingsError, match="no token <extra_id_0>"):
        spans.vocabulary_of({"</s>": 0, "<pad>": 1})
    with pytest.raises(SettingsError, match="1 sentinels; expected one for each of 28 spans"):
        next(spans.span_records(range(600), spans.span_sizes(512), spans.SpanVocabulary(0, 1, [2])))
    with pytest.raises(SettingsError, match="expected at least 4, between 0 and 1"):
        spans.span_sizes(3)


def script(name: str, *words: str) -> str:
    command = [sys.executable, str(ROOT / "scripts" / name), *words]
    result = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stderr
    return result.stdout


SIZES: dict[str, tuple[dict[str, int], dict[str, int]]] = {
    # Options of the script, what the params file then says.
    "bert": (
        {"max_seq_length": 64, "max_predictions_per_seq": 10},
        {"max_sequence_length": 64, "max_predictions_per_seq": 10},
    ),
    "t5": ({"max_seq_length": 96}, {"max_sequence_length": 96, "max_target_length": 22}),
}


@pytest.mark.parametrize("has_tokenizer", [False, True], ids=["bytes", "tokens"])
@pytest.mark.parametrize("name", SIZES)
def test_a_tiny_config_trains_on_samples_that_the_script_made(
    name: str, has_tokenizer: bool, home: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    options, sizes = SIZES[name]
    words = [word for key, value in options.items() for word in (f"--{key}", str(value))]
    if has_tokenizer:
        pytest.importorskip("tokenizers")
        tokenizer = str(tmp_path / "tokenizer.json")
        script("train_tokenizer.py", "--model", name, "--vocab_size", "400", "--output", tokenizer, str(TEXT))
        words += ["--tokenizer", tokenizer]
    words += ["--model", name, "--output_dir", str(tmp_path / "train")]
    printed = script("convert_dataset_to_hdf5.py", *words, str(TEXT))
    assert printed.startswith("1 file saved in")
    if name == "t5":
        assert printed.endswith("max_sequence_length: 96, max_target_length: 22\n")
    content = yaml.safe_load((FOLDER / name / "configs" / "params_tiny.yaml").read_text())
    content["train_input"] = sizes | {"data_dir": "train", "batch_size": 16, "shuffle_seed": 1}
    content["eval_input"] = sizes | {"data_dir": "train", "batch_size": 16}
    content["model"]["src_vocab_size" if name == "t5" else "vocab_size"] = 400
    content["runconfig"]["log_step_count_steps"] = 1
    if name == "bert":
        content["model"]["disable_nsp"] = False
    (tmp_path / "params.yaml").write_text(yaml.safe_dump(content))
    model = importlib.import_module(f"reference_implementations.{name}.run").MODEL
    caplog.set_level(logging.INFO)
    words = ["--params", str(tmp_path / "params.yaml"), "--model_dir", str(tmp_path / "out"), "--mode", "train"]
    assert run(model, [*words, "--max_steps", "12"]) == 0
    losses = [float(value) for value in re.findall(r"global step \d+: loss = ([\d.]+)", caplog.text)]
    assert len(losses) == 12
    # The untrained loss is ln 400 = 6.0 per token; the model soon learns which tokens are frequent.
    assert 5.5 < losses[0] < 8.0
    assert losses[-1] < losses[0] - 0.5
