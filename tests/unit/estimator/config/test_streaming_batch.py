"""get_streaming_batch_size: the whole batch for the process that reads the stream, a share for a worker's number."""

from __future__ import annotations

from typing import Any

import pytest
import tensorflow as tf

import cerebras_tensorflow
from cerebras_tensorflow.estimator.config.run_settings import run_settings
from cerebras_tensorflow.estimator.model.inputs import InputPipeline


def test_an_input_fn_gets_the_global_batch_and_the_share_of_each_worker() -> None:
    seen: list[Any] = []

    def input_fn() -> Any:
        size = cerebras_tensorflow.get_streaming_batch_size
        seen.append([size(10), *(size(10, rank) for rank in range(6))])
        with pytest.raises(ValueError, match="global_rank is 6, expected 0 to 5: 3 CSX have 2 input worker"):
            size(10, 6)
        with pytest.raises(ValueError, match="2 samples for 3 CSX: each needs one"):
            size(2)
        return tf.data.Dataset.range(20).batch(size(10))

    cs_config = cerebras_tensorflow.CSConfig(num_csx=3, num_workers_per_csx=2)
    settings = run_settings(cerebras_tensorflow.CSRunConfig(cs_config=cs_config))
    InputPipeline(input_fn, {}, "train", settings).close()
    assert seen == [[10, 3, 3, 3, 3, 4, 4]]
    assert cerebras_tensorflow.get_streaming_batch_size(10, 0) == 10  # outside of a run: one CSX
