"""Questions about a text: "which of these lines begins with this letter?"; the answer is the line.

TFRecord files hold input_ids, input_mask, segment_ids (S int64) and labels (2 int64: first and last position).

# S sequence
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from reference_implementations.bert.fine_tuning.samples import Arrays, encoded, input_fns, stacked

LINES = 3


def samples_of(text: bytes, sequence: int) -> Arrays:
    """Return a sample for each group of lines that fits and whose first letters differ.

    The group's number is the seed that chooses the line to ask for.

    Returns:
        input_ids, input_mask, segment_ids (samples, S); labels (samples, 2); all int32.
    """
    lines = [line for line in (line.strip() for line in text.splitlines()) if line]
    samples = []
    for number in range(len(lines) // LINES):
        # Long lines are cut, so that three always fit.
        length = (sequence - 4 - LINES) // LINES
        group = [line[:length].rstrip() for line in lines[number * LINES : (number + 1) * LINES]]
        if len({line[0] for line in group}) < LINES:
            continue
        asked = int(np.random.default_rng(number).integers(LINES))
        question, passage = group[asked][:1], b"\n".join(group)
        start = 1 + len(question) + 1 + sum(len(line) + 1 for line in group[:asked])
        labels = np.array([start, start + len(group[asked]) - 1], np.int32)
        samples.append(encoded([question, passage], sequence) | {"labels": labels})
    return stacked(samples)


def specification(sequence: int) -> Mapping[str, Any]:
    """Return shape and type of each feature in a TFRecord."""
    names = ("input_ids", "input_mask", "segment_ids")
    features = {name: tf.io.FixedLenFeature([sequence], tf.int64) for name in names}
    return features | {"labels": tf.io.FixedLenFeature([2], tf.int64)}


train_input_fn, eval_input_fn = input_fns(samples_of, specification)
