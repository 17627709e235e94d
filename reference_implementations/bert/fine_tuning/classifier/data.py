"""Lines of a text, unchanged (1) or with their words in another order (0).

TFRecord files hold input_ids, input_mask, segment_ids (S int64) and labels (1 int64).

# S sequence
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from reference_implementations.bert.fine_tuning.samples import Arrays, encoded, input_fns, stacked

SHUFFLED, ORIGINAL = 0, 1
_MIN_WORDS = 4


def samples_of(text: bytes, sequence: int) -> Arrays:
    """Return two samples for each line that fits and has enough words: itself, and its words in another order.

    Capitals and punctuation stay: they show a small model where a line begins and ends. The line's number is the seed
    of the order, so a line is always shuffled in the same way.

    Returns:
        input_ids, input_mask, segment_ids (samples, S); labels (samples,); all int32.
    """
    samples = []
    for number, line in enumerate(text.splitlines()):
        words = line.split()
        if len(words) < _MIN_WORDS or len(b" ".join(words)) > sequence - 2:
            continue
        order = np.random.default_rng(number).permutation(len(words))
        shuffled = [words[place] for place in order]
        if shuffled == words:
            continue
        for label, ordered in ((ORIGINAL, words), (SHUFFLED, shuffled)):
            samples.append(encoded([b" ".join(ordered)], sequence) | {"labels": np.array(label, np.int32)})
    return stacked(samples)


def specification(sequence: int) -> Mapping[str, Any]:
    """Return shape and type of each feature in a TFRecord."""
    names = ("input_ids", "input_mask", "segment_ids")
    features = {name: tf.io.FixedLenFeature([sequence], tf.int64) for name in names}
    return features | {"labels": tf.io.FixedLenFeature([], tf.int64)}


train_input_fn, eval_input_fn = input_fns(samples_of, specification)
