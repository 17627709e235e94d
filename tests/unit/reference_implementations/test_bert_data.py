"""BERT's pairs: masking, next-sentence labels, and that each step always draws the same batch."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from reference_implementations.bert.data import pair_dataset
from reference_implementations.bert.records import CLASS, MASK, SEPARATOR
from reference_implementations.bert.settings import TrainBertInput

SEQUENCE, PREDICTIONS = 23, 4


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_bytes(bytes(number % 251 for number in range(2000)))
    return path


def batches(text: Path, count: int, skip: int = 0) -> list[dict[str, np.ndarray]]:
    settings = TrainBertInput(
        data_file=str(text),
        batch_size=8,
        max_sequence_length=SEQUENCE,
        max_predictions_per_seq=PREDICTIONS,
        masked_lm_prob=0.15,
        skip_steps=skip,
    )
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        iterator = tf.compat.v1.data.make_initializable_iterator(pair_dataset(settings))
        features, labels = iterator.get_next()
        session.run(iterator.initializer)
        return [session.run({**features, "labels": labels}) for _ in range(count)]


def test_masked_bytes_can_be_restored_and_special_tokens_stay(text: Path) -> None:
    kept = changed = 0
    for batch in batches(text, 20):
        restored = batch["input_ids"].copy()
        rows = np.arange(8)[:, None]
        shown = restored[rows, batch["masked_lm_positions"]]
        restored[rows, batch["masked_lm_positions"]] = batch["masked_lm_ids"]
        assert np.all(restored[:, 0] == CLASS)
        assert np.all(restored[:, [11, 22]] == SEPARATOR)
        assert np.all(np.delete(restored, [0, 11, 22], axis=1) < 256)
        first, second = restored[:, 1:11], restored[:, 12:22]
        assert np.all(np.diff(first, axis=1) % 251 == 1)
        follows = (second[:, 0] - first[:, -1]) % 251 == 1
        assert np.all(follows[batch["labels"] == 0])
        # 15 % of the 20 bytes; the fourth prediction weighs nothing and shows its byte.
        np.testing.assert_array_equal(batch["masked_lm_weights"], np.tile([1, 1, 1, 0], [8, 1]))
        np.testing.assert_array_equal(shown[:, 3], batch["masked_lm_ids"][:, 3])
        changed += int(np.sum(shown[:, :3] == MASK))
        kept += int(np.sum(shown[:, :3] == batch["masked_lm_ids"][:, :3]))
        np.testing.assert_array_equal(batch["segment_ids"][0], [0] * 12 + [1] * 11)
    drawn = 20 * 8 * 3
    assert 0.7 < changed / drawn < 0.9
    assert 0.04 < kept / drawn < 0.18


def test_half_of_the_pairs_are_random(text: Path) -> None:
    labels = np.concatenate([batch["labels"] for batch in batches(text, 20)])
    assert 0.35 < labels.mean() < 0.65


def test_skipping_steps_continues_the_same_draws(text: Path) -> None:
    whole, resumed = batches(text, 15), batches(text, 4, skip=11)
    for expected, batch in zip(whole[11:], resumed, strict=True):
        for name, value in expected.items():
            np.testing.assert_array_equal(batch[name], value, err_msg=name)
