"""T5's missing spans: the text can be restored, and each step always draws the same batch."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from reference_implementations.t5.data import span_dataset
from reference_implementations.t5.records import END, FIRST_SENTINEL, START
from reference_implementations.t5.settings import TrainSpanInput


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_bytes(bytes(number % 251 for number in range(1000)))
    return path


def batches(text: Path, count: int, skip: int = 0) -> list[dict[str, np.ndarray]]:
    settings = TrainSpanInput(
        data_file=str(text), batch_size=4, max_sequence_length=24, num_spans=3, span_length=3, skip_steps=skip
    )
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        iterator = tf.compat.v1.data.make_initializable_iterator(span_dataset(settings))
        features, labels = iterator.get_next()
        session.run(iterator.initializer)
        return [session.run({**features, "labels": labels}) for _ in range(count)]


def test_replacing_sentinels_by_their_spans_restores_the_text(text: Path) -> None:
    places = set()
    for batch in batches(text, 20):
        for inputs, labels in zip(batch["input_ids"], batch["labels"], strict=True):
            assert labels[-1] == END
            spans = {int(part[0]): list(part[1:]) for part in labels[:-1].reshape(3, 4)}
            assert sorted(spans) == [FIRST_SENTINEL, FIRST_SENTINEL + 1, FIRST_SENTINEL + 2]
            restored = [byte for token in inputs for byte in spans.get(int(token), [token])]
            assert len(restored) == 24
            assert np.all(np.diff(restored) % 251 == 1)
            places.add(int(np.argmax(inputs >= FIRST_SENTINEL)))
    assert places == set(range(6))  # every place in the first part of 8 bytes


def test_decoder_inputs_are_the_labels_shifted_by_one(text: Path) -> None:
    batch = batches(text, 1)[0]
    np.testing.assert_array_equal(batch["decoder_input_ids"][:, 0], START)
    np.testing.assert_array_equal(batch["decoder_input_ids"][:, 1:], batch["labels"][:, :-1])


def test_skipping_steps_continues_the_same_draws(text: Path) -> None:
    whole, resumed = batches(text, 12), batches(text, 3, skip=9)
    for expected, batch in zip(whole[9:], resumed, strict=True):
        for name, value in expected.items():
            np.testing.assert_array_equal(batch[name], value, err_msg=name)
