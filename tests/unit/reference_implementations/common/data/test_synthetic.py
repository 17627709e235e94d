"""Random batches: the shapes of the data without the data, the same batch for the same step."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from cerebras_tensorflow.errors import SettingsError
from reference_implementations.common.data.synthetic import EVAL_BATCHES, synthetic_input_fn

ROOT = Path(__file__).parents[5] / "reference_implementations"


def read(model: Any, params: dict[str, Any], mode: str, count: int) -> list[Any]:
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        batch = tf.compat.v1.data.make_one_shot_iterator(model.input_fn(mode, synthetic=True)(params)).get_next()
        return [session.run(batch) for _ in range(count)]


@pytest.mark.parametrize(
    "config", ["gptj/configs/params_continuous_pretraining.yaml", "bert/configs/params_large.yaml"]
)
def test_a_published_config_gets_batches_of_its_shapes_without_its_data(config: str) -> None:
    model = import_module(f"reference_implementations.{config.split('/')[0]}.run").MODEL
    params = model.read_params(str(ROOT / config))
    section = params["train_input"]
    section["batch_size"] = 2
    first, second = read(model, params, "train", 2)
    features, labels = first
    tokens = features["input_ids"]
    assert tokens.shape == (2, section["max_sequence_length"])
    assert tokens.min() >= 0
    assert params["model"]["vocab_size"] // 2 < tokens.max() < params["model"]["vocab_size"]
    assert set(np.unique(labels)) <= {0, 1}
    if "masked_lm_positions" in features:
        assert features["masked_lm_positions"].max() < section["max_sequence_length"]
        assert features["masked_lm_weights"].all()
    section["skip_steps"] = 1
    np.testing.assert_array_equal(read(model, params, "train", 1)[0][0]["input_ids"], second[0]["input_ids"])


def test_data_that_ends_ends_here_too() -> None:
    def input_fn(params: Any, input_context: Any) -> tf.data.Dataset:
        return tf.data.Dataset.from_tensors(tf.zeros([3, 2]))

    made = synthetic_input_fn(input_fn, "eval_input")({"eval_input": {"repeat": False}}, None)
    assert [tuple(batch.shape) for batch in made] == [(3, 2)] * EVAL_BATCHES


def test_shapes_that_are_not_fixed_are_refused() -> None:
    def input_fn(params: Any, input_context: Any) -> tf.data.Dataset:
        return tf.data.Dataset.from_tensors(tf.zeros([3, 2])).unbatch().batch(2)

    with pytest.raises(SettingsError, match="--synthetic: the shapes of section eval_input's batch are not fixed"):
        synthetic_input_fn(input_fn, "eval_input")({}, None)
