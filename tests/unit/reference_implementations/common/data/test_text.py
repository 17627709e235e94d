"""Windows of a text, in an order that a run can resume at any step."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from cerebras_tensorflow.errors import SettingsError
from reference_implementations.common.data.text import text_dataset
from reference_implementations.common.text_settings import EvalTextInput, TrainTextInput


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_bytes(bytes(range(41)))  # 10 windows of 4 bytes and the byte after
    return path


def batches(settings: Any, limit: int = 1000, input_context: Any = None) -> list[tuple[np.ndarray, np.ndarray]]:
    windows = []
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        iterator = tf.compat.v1.data.make_initializable_iterator(text_dataset(settings, input_context))
        features, labels = iterator.get_next()
        session.run(iterator.initializer)
        while len(windows) < limit:
            try:
                values = session.run([features["input_ids"], labels, features["input_mask"]])
            except tf.errors.OutOfRangeError:
                break
            assert np.all(values[2] == 1)
            windows.append((values[0], values[1]))
    return windows


def first_bytes(windows: list[tuple[np.ndarray, np.ndarray]]) -> list[int]:
    return [int(row[0]) for ids, _ in windows for row in ids]


def test_labels_are_the_next_bytes_and_every_window_comes_once(text: Path) -> None:
    windows = batches(EvalTextInput(data_file=str(text), batch_size=5, max_sequence_length=4))
    assert first_bytes(windows) == list(range(0, 40, 4))
    for ids, labels in windows:
        assert ids.dtype == labels.dtype == np.int32
        np.testing.assert_array_equal(labels, ids + 1)


def test_each_epoch_has_every_window_in_a_new_order(text: Path) -> None:
    windows = batches(TrainTextInput(data_file=str(text), batch_size=5, max_sequence_length=4), limit=4)
    first, second = first_bytes(windows)[:10], first_bytes(windows)[10:]
    assert sorted(first) == sorted(second) == list(range(0, 40, 4))
    assert first != second


@pytest.mark.parametrize("skip", [1, 3, 7, 20])
@pytest.mark.parametrize("shuffle", [True, False])
def test_skipping_steps_continues_the_same_sequence(text: Path, skip: int, shuffle: bool) -> None:
    common = {"data_file": str(text), "batch_size": 3, "max_sequence_length": 4, "shuffle": shuffle, "shuffle_seed": 9}
    whole = batches(TrainTextInput(**common), limit=skip + 4)
    resumed = batches(TrainTextInput(**common, skip_steps=skip), limit=4)
    assert first_bytes(resumed) == first_bytes(whole[skip:])


def test_input_pipelines_share_the_batches_in_turn(text: Path) -> None:
    settings = TrainTextInput(data_file=str(text), batch_size=3, max_sequence_length=4)
    whole = batches(settings, limit=6)
    shards = [
        batches(settings, limit=3, input_context=SimpleNamespace(num_input_pipelines=2, input_pipeline_id=number))
        for number in range(2)
    ]
    dealt = [batch for pair in zip(*shards, strict=True) for batch in pair]
    assert first_bytes(dealt) == first_bytes(whole)


def test_a_text_shorter_than_a_batch_is_refused(text: Path) -> None:
    with pytest.raises(SettingsError, match="holds 10 windows of 4 bytes, less than one batch of 11"):
        batches(EvalTextInput(data_file=str(text), batch_size=11, max_sequence_length=4))


def test_a_missing_text_is_named(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"nothing\.txt.*No such file"):
        batches(EvalTextInput(data_file=str(tmp_path / "nothing.txt"), batch_size=1, max_sequence_length=4))
