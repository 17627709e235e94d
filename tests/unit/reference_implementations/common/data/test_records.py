"""Pre-training samples from TFRecord files, as the public Model Zoo's scripts write them."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from cerebras_tensorflow.errors import MissingDataError, SettingsError
from reference_implementations.bert import data as bert
from reference_implementations.t5 import data as t5

SAMPLES, S, P, T = 12, 16, 3, 5
LENGTHS: dict[ModuleType, dict[str, int]] = {
    bert: {"input_ids": S, "input_mask": S, "segment_ids": S, "masked_lm_positions": P, "masked_lm_ids": P}
    | {"masked_lm_weights": P, "next_sentence_labels": 1},
    t5: {"input_ids": S, "decoder_input_ids": T, "labels": T},
}
SETTINGS: dict[ModuleType, dict[str, Any]] = {
    bert: {"max_sequence_length": S, "max_predictions_per_seq": P},
    t5: {"max_sequence_length": S, "max_target_length": T},
}


def write(folder: Path, lengths: dict[str, int]) -> None:
    with tf.io.TFRecordWriter(str(folder / "data.tfrecord-00000")) as writer:
        for number in range(SAMPLES):
            features = {}
            for name, length in lengths.items():
                if name == "masked_lm_weights":
                    features[name] = tf.train.Feature(float_list=tf.train.FloatList(value=[number / 2] * length))
                else:
                    features[name] = tf.train.Feature(int64_list=tf.train.Int64List(value=[number] * length))
            writer.write(tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString())


def batches(module: ModuleType, section: dict[str, Any], count: int) -> list[Any]:
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        dataset = module.train_input_fn({"train_input": section})
        assert all(spec.shape.is_fully_defined() for spec in tf.nest.flatten(dataset.element_spec))
        following = tf.compat.v1.data.make_one_shot_iterator(dataset).get_next()
        return [session.run(following) for _ in range(count)]


@pytest.mark.parametrize("module", LENGTHS, ids=["bert", "t5"])
def test_samples_are_read_and_skipping_steps_continues_the_sequence(module: ModuleType, tmp_path: Path) -> None:
    write(tmp_path, LENGTHS[module])
    section = SETTINGS[module] | {"data_dir": str(tmp_path), "batch_size": 4, "shuffle_seed": 3}
    whole = batches(module, section, 6)
    numbers = [int(value) for features, _ in whole for value in features["input_ids"][:, 0]]
    assert sorted(numbers[:SAMPLES]) == sorted(numbers[SAMPLES:]) == list(range(SAMPLES))
    assert numbers[:SAMPLES] != numbers[SAMPLES:]
    for features, labels in whole:
        np.testing.assert_array_equal(labels if module is bert else labels[:, 0], features["input_ids"][:, 0])
        if module is bert:
            np.testing.assert_array_equal(features["masked_lm_weights"][:, 0] * 2, features["input_ids"][:, 0])
            assert features["masked_lm_weights"].dtype == np.float32
    for ours, theirs in zip(batches(module, section | {"skip_steps": 4}, 2), whole[4:], strict=True):
        np.testing.assert_array_equal(ours[0]["input_ids"], theirs[0]["input_ids"])


@pytest.mark.parametrize("module", LENGTHS, ids=["bert", "t5"])
def test_the_error_for_missing_records_has_the_element_spec(module: ModuleType, tmp_path: Path) -> None:
    section = SETTINGS[module] | {"data_dir": str(tmp_path), "batch_size": 4}
    with pytest.raises(MissingDataError, match=r"no \*\.tfrecord\* files") as caught:
        module.train_input_fn({"train_input": section})
    write(tmp_path, LENGTHS[module])
    assert caught.value.element_spec == module.train_input_fn({"train_input": section}).element_spec


@pytest.mark.parametrize("module", LENGTHS, ids=["bert", "t5"])
def test_a_section_must_name_a_text_or_records(module: ModuleType) -> None:
    section = SETTINGS[module] | {"batch_size": 4}
    with pytest.raises(SettingsError, match="either data_file"):
        module.train_input_fn({"train_input": section})
