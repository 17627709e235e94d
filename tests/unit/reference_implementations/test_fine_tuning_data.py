"""Fine-tuning tasks made from a text, and samples from TFRecord files."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from cerebras_tensorflow.errors import SettingsError
from reference_implementations.bert.fine_tuning.classifier import data as classifier
from reference_implementations.bert.fine_tuning.qa import data as qa
from reference_implementations.bert.fine_tuning.samples import encoded
from reference_implementations.bert.fine_tuning.token_classifier import data as token_classifier
from reference_implementations.bert.records import CLASS, PADDING, SEPARATOR

TEXT = (Path(__file__).parents[3] / "reference_implementations" / "data" / "paradise_lost_eval.txt").read_bytes()
HEADS = {"classifier": classifier, "token_classifier": token_classifier, "qa": qa}


def text_of(ids: np.ndarray) -> bytes:
    return bytes(int(token) for token in ids if token < CLASS)


def test_pieces_are_separated_and_padded() -> None:
    sample = encoded([b"ab", b"c"], 8)
    np.testing.assert_array_equal(sample["input_ids"], [CLASS, 97, 98, SEPARATOR, 99, SEPARATOR, PADDING, PADDING])
    np.testing.assert_array_equal(sample["input_mask"], [1, 1, 1, 1, 1, 1, 0, 0])
    np.testing.assert_array_equal(sample["segment_ids"], [0, 0, 0, 0, 1, 1, 0, 0])


def test_a_shuffled_line_has_the_same_words_and_follows_its_original() -> None:
    samples = classifier.samples_of(TEXT, 64)
    assert len(samples["labels"]) > 1000
    np.testing.assert_array_equal(samples["labels"][:4], [1, 0, 1, 0])
    lines = set(TEXT.splitlines())
    for original, shuffled in zip(samples["input_ids"][0::2], samples["input_ids"][1::2], strict=True):
        first, second = text_of(original), text_of(shuffled)
        assert sorted(first.split()) == sorted(second.split())
        assert first != second
        assert any(b" ".join(line.split()) == first for line in lines if first[:9] in line)


def test_capitals_are_marked_at_their_letters() -> None:
    samples = token_classifier.samples_of(b"As Eve, 9 Am\n\nlong" + b"g" * 90, 16)
    assert text_of(samples["input_ids"][0]) == b"as eve, 9 am"
    ignored = token_classifier.IGNORED
    expected = [ignored, 1, 0, ignored, 1, 0, 0, ignored, ignored, ignored, ignored, 1, 0, ignored, ignored, ignored]
    np.testing.assert_array_equal(samples["labels"], [expected])


def test_the_marked_answer_is_the_line_of_the_question() -> None:
    samples = qa.samples_of(TEXT, 128)
    assert len(samples["labels"]) > 100
    asked = set()
    for ids, (start, end) in zip(samples["input_ids"], samples["labels"], strict=True):
        question, passage = ids[1], text_of(ids)[1:]
        answer = text_of(ids[start : end + 1])
        assert answer[0] == question
        assert answer in passage.split(b"\n")
        asked.add(passage.split(b"\n").index(answer))
    assert asked == {0, 1, 2}


@pytest.mark.parametrize("name", sorted(HEADS))
def test_records_of_a_task_give_the_batches_of_its_text(name: str, tmp_path: Path) -> None:
    path, sequence = tmp_path / "text.txt", 128
    path.write_bytes(TEXT)
    arrays = HEADS[name].samples_of(TEXT, sequence)
    with tf.io.TFRecordWriter(str(tmp_path / "data.tfrecord")) as writer:
        for number in range(len(arrays["labels"])):
            features = {
                key: tf.train.Feature(int64_list=tf.train.Int64List(value=np.reshape(values[number], -1)))
                for key, values in arrays.items()
            }
            writer.write(tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString())
    common: dict[str, Any] = {"batch_size": 4, "max_sequence_length": sequence, "skip_steps": 3}
    first_batches = []
    for source in ({"data_file": str(path)}, {"data_dir": str(tmp_path)}):
        with tf.Graph().as_default(), tf.compat.v1.Session() as session:
            batches = HEADS[name].eval_input_fn({"eval_input": common | source})
            assert all(
                spec.shape.is_fully_defined() or source.get("data_dir")
                for spec in tf.nest.flatten(batches.element_spec)
            )
            iterator = tf.compat.v1.data.make_one_shot_iterator(batches)
            first_batches.append(session.run(iterator.get_next()))
    for ours, theirs in zip(tf.nest.flatten(first_batches[0]), tf.nest.flatten(first_batches[1]), strict=True):
        np.testing.assert_array_equal(ours, theirs)
        assert ours.dtype == theirs.dtype == np.int32


def test_a_text_shorter_than_a_batch_is_refused(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_bytes(b"two words\n")
    settings = {"data_file": str(tmp_path / "text.txt"), "batch_size": 4, "max_sequence_length": 32}
    with pytest.raises(SettingsError, match="makes 0 samples, less than one batch of 4"):
        classifier.eval_input_fn({"eval_input": settings})


@pytest.mark.parametrize("name", sorted(HEADS))
def test_a_section_without_text_and_records_is_refused(name: str) -> None:
    module = importlib.import_module(f"reference_implementations.bert.fine_tuning.{name}.settings")
    with pytest.raises(SettingsError, match="either data_file"):
        module.SECTIONS["train_input"](batch_size=1, max_sequence_length=32)
