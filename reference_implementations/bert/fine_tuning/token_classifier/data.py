"""Truecasing: given lines of a text in small letters, which letters were capitals (1) and which not (0)?

TFRecord files hold input_ids, input_mask, segment_ids and labels (S int64; -1 at tokens that do not count).

# S sequence
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from reference_implementations.bert.fine_tuning.samples import Arrays, encoded, input_fns, stacked
from reference_implementations.bert.fine_tuning.token_classifier.model import IGNORED

SMALL, CAPITAL = 0, 1


def samples_of(text: bytes, sequence: int) -> Arrays:
    """Return a sample for each line that fits and is not empty; only letters count.

    Returns:
        input_ids, input_mask, segment_ids, labels (samples, S) int32.
    """
    samples = []
    for line in (line.strip() for line in text.splitlines()):
        if not 0 < len(line) <= sequence - 2:
            continue
        letters, small = np.frombuffer(line, np.uint8), np.frombuffer(line.lower(), np.uint8)
        is_letter = (small >= 97) & (small <= 122)
        labels = np.full([sequence], IGNORED, np.int32)
        labels[1 : len(line) + 1] = np.where(is_letter, np.where(letters != small, CAPITAL, SMALL), IGNORED)
        samples.append(encoded([small.tobytes()], sequence) | {"labels": labels})
    return stacked(samples)


def specification(sequence: int) -> Mapping[str, Any]:
    """Return shape and type of each feature in a TFRecord."""
    names = ("input_ids", "input_mask", "segment_ids", "labels")
    return {name: tf.io.FixedLenFeature([sequence], tf.int64) for name in names}


train_input_fn, eval_input_fn = input_fns(samples_of, specification)
