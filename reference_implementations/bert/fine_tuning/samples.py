"""Samples of a fine-tuning task -> batches, in an order that a run can resume at any batch.

# B batch, S sequence
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from cerebras_tensorflow.errors import SettingsError
from reference_implementations.bert.fine_tuning.settings import (
    EvalFineTuningInput,
    FineTuningInput,
    TrainFineTuningInput,
)
from reference_implementations.bert.records import CLASS, PADDING, SEPARATOR
from reference_implementations.common.data.records import record_dataset
from reference_implementations.common.data.sample_order import batches_of
from reference_implementations.common.settings import check_section

Arrays = dict[str, np.ndarray]
# (text, sequence length) -> arrays of samples, all of one length; `labels` among them.
MakeSamples = Callable[[bytes, int], Arrays]
# sequence length -> shape and type of each feature in a TFRecord.
Specification = Callable[[int], Mapping[str, Any]]


def input_fns(make_samples: MakeSamples, specification: Specification) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Return the input_fns of sections `train_input` and `eval_input` of a task.

    Each returns batches (features, labels): samples that `make_samples` makes from `data_file`, or those in `data_dir`.
    """

    def train_input_fn(params: Mapping[str, Any], input_context: Any = None) -> tf.data.Dataset:
        """Return the training batches."""
        settings = check_section(params["train_input"], TrainFineTuningInput, "train_input", "params")
        return _dataset(settings, make_samples, specification, input_context)

    def eval_input_fn(params: Mapping[str, Any], input_context: Any = None) -> tf.data.Dataset:
        """Return the evaluation batches."""
        settings = check_section(params["eval_input"], EvalFineTuningInput, "eval_input", "params")
        return _dataset(settings, make_samples, specification, input_context)

    return train_input_fn, eval_input_fn


def encoded(pieces: list[bytes], sequence: int) -> Arrays:
    """Return the features of [CLASS] first [SEPARATOR] (second [SEPARATOR]), padded; each (S,) int32.

    Args:
        pieces: One or two pieces of text that fit into S.
        sequence: S.
    """
    ids = [CLASS]
    segments = [0]
    for number, piece in enumerate(pieces):
        ids += [*piece, SEPARATOR]
        segments += [number] * (len(piece) + 1)
    assert len(ids) <= sequence, (len(ids), sequence)
    fill = sequence - len(ids)
    return {
        "input_ids": np.array(ids + [PADDING] * fill, np.int32),
        "input_mask": np.array([1] * len(ids) + [0] * fill, np.int32),
        "segment_ids": np.array(segments + [0] * fill, np.int32),
    }


def stacked(samples: list[Arrays]) -> Arrays:
    """Return the arrays of samples by name, stacked along a new first axis."""
    return {name: np.stack([sample[name] for sample in samples]) for name in samples[0]} if samples else {}


def _dataset(
    settings: FineTuningInput, make_samples: MakeSamples, specification: Specification, input_context: Any
) -> tf.data.Dataset:
    if settings.data_dir is not None:
        return record_dataset(settings, specification(settings.max_sequence_length), input_context)
    try:
        text = Path(str(settings.data_file)).read_bytes()
    except OSError as exc:
        raise SettingsError(f"cannot read data_file {settings.data_file!r}: {exc.strerror}") from exc
    arrays = make_samples(text, settings.max_sequence_length)
    count = len(arrays["labels"]) if arrays else 0
    what = f"data_file {settings.data_file!r} makes {count} samples"
    batches = batches_of(count, settings, input_context, what)
    columns = {name: tf.constant(values) for name, values in arrays.items()}

    def gather(_step: tf.Tensor, index_B: tf.Tensor) -> tuple[Mapping[str, tf.Tensor], tf.Tensor]:
        index_B = tf.ensure_shape(index_B, [settings.batch_size])
        features = {name: tf.gather(column, index_B) for name, column in columns.items()}
        return features, features.pop("labels")

    return batches.map(gather).prefetch(2)
