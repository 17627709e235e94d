"""Random batches with the shapes of a model's data: any config runs without its data set (run.py --synthetic).

Step k of a run always gets the same batch, so a resumed run ends with the same bits. No model learns anything from it:
use it to measure memory and speed.

# B batch
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf

from cerebras_tensorflow.errors import MissingDataError, SettingsError
from reference_implementations.common.tasks import num_tasks, task_id

EVAL_BATCHES = 10  # in a data set that ends
_SEED = 20

InputFn = Callable[[Mapping[str, Any], Any], tf.data.Dataset]


def synthetic_input_fn(input_fn: InputFn, section: str) -> InputFn:
    """Return an input_fn whose batches have the shapes and types of another's, and random values.

    Args:
        input_fn: The model's. Its data may be missing.
        section: The section of params that describes the input: "train_input", ...
    """

    def make(params: Mapping[str, Any], input_context: Any = None) -> tf.data.Dataset:
        settings, vocabulary = params.get(section, {}), _vocabulary(params.get("model", {}))
        spec = _batch_spec(input_fn, params, section)
        features, *labels = spec if isinstance(spec, tuple) else (spec,)

        def draw(step: tf.Tensor) -> Any:
            named = features if isinstance(features, Mapping) else {"features": features}
            values = {name: _value(name, one, vocabulary, step) for name, one in named.items()}
            drawn = values if isinstance(features, Mapping) else values["features"]
            return (drawn, *(_value("labels", one, 2, step) for one in labels)) if labels else drawn

        first = settings.get("skip_steps", 0)
        last = tf.int64.max if settings.get("repeat", True) else first + EVAL_BATCHES
        steps = tf.data.Dataset.range(first, last).shard(num_tasks(input_context), task_id(input_context))
        return steps.map(draw).prefetch(2)

    return make


def _batch_spec(input_fn: InputFn, params: Mapping[str, Any], section: str) -> Any:
    """Return the tf.TensorSpecs of a batch.

    Raises:
        SettingsError: If only the data itself would tell them.
    """
    try:
        with tf.Graph().as_default():
            spec = input_fn(params, None).element_spec
    except MissingDataError as exc:
        spec = exc.element_spec
        if spec is None:
            raise SettingsError(f"--synthetic: the shapes of a batch are known from the data only: {exc}") from exc
    if not all(one.shape.is_fully_defined() for one in tf.nest.flatten(spec)):
        raise SettingsError(f"--synthetic: the shapes of section {section}'s batch are not fixed: {spec}")
    return spec


def _vocabulary(model: Mapping[str, Any]) -> int:
    """Return the size of the smallest vocabulary of a model; 2 if it has none."""
    return min((size for key, size in model.items() if key.endswith("vocab_size") and size), default=2)


def _value(name: str, spec: tf.TensorSpec, below: int, step: tf.Tensor) -> tf.Tensor:
    """Return a value that any model accepts under this name.

    Args:
        name: Of the feature; "labels" for labels.
        spec: Its shape and type.
        below: Whole numbers are drawn from 0 to below - 1.
        step: Number of the batch, () int64.
    """
    shape = spec.shape.as_list()
    if "mask" in name.removeprefix("masked_lm_") or "weights" in name:
        return tf.ones(shape, spec.dtype)
    if "segment" in name:
        return tf.zeros(shape, spec.dtype)
    if "position" in name:
        return tf.broadcast_to(tf.cast(tf.range(shape[-1]), spec.dtype), shape)
    key = tf.stack([tf.constant(_SEED, tf.int64), step])
    if spec.dtype.is_floating:
        return tf.random.stateless_uniform(shape, key, dtype=spec.dtype)
    return tf.random.stateless_uniform(shape, key, maxval=below if len(shape) > 1 else 2, dtype=spec.dtype)
