"""The metric of a language model is bits per byte or bits per token, depending on the data."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from reference_implementations.common.language_model import language_model_spec

VOCABULARY = 5


def metrics_of(eval_input: dict[str, Any]) -> dict[str, float]:
    """Evaluate equal logits on one batch whose last token is masked."""
    with tf.Graph().as_default():
        features = {"input_ids": tf.zeros([1, 3], tf.int32), "input_mask": tf.constant([[1, 1, 0]])}
        spec = language_model_spec(
            lambda ids, _is_training: tf.zeros([*ids.shape, VOCABULARY]),
            features,
            tf.constant([[0, 1, 2]]),
            "eval",
            {"eval_input": eval_input},
        )
        with tf.compat.v1.Session() as session:
            session.run(tf.compat.v1.local_variables_initializer())
            session.run([update for _, update in spec.eval_metric_ops.values()])
            metrics: dict[str, float] = session.run({name: value for name, (value, _) in spec.eval_metric_ops.items()})
    return metrics


@pytest.mark.parametrize(
    ("eval_input", "name"),
    [({"data_file": "text.txt"}, "eval/bits_per_byte"), ({"data_dir": "tokens"}, "eval/bits_per_token")],
)
def test_the_metric_is_bits_per_byte_or_bits_per_token(eval_input: dict[str, Any], name: str) -> None:
    metrics = metrics_of(eval_input)
    assert metrics.keys() == {"eval/accuracy", "eval/lm_perplexity", name}
    np.testing.assert_allclose(metrics[name], math.log2(VOCABULARY), rtol=1e-6)
    np.testing.assert_allclose(metrics["eval/lm_perplexity"], VOCABULARY, rtol=1e-6)
    assert metrics["eval/accuracy"] == 0.5
