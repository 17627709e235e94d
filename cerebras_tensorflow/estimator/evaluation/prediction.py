"""A generator of a checkpoint's predictions."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from cerebras_tensorflow.estimator.evaluation.run import InferenceRequest, opened_model
from cerebras_tensorflow.estimator.execution.session_settings import SessionCreator
from cerebras_tensorflow.estimator.execution.target import Target
from cerebras_tensorflow.estimator.mode_keys import ModeKeys
from cerebras_tensorflow.estimator.model.model_call import Model
from cerebras_tensorflow.logs import run_log


def predict(
    request: InferenceRequest,
    target: Target,
    predict_keys: Sequence[str] | None,
    yield_single_examples: bool,
    num_samples: int | None,
) -> Iterator[Any]:
    """Yield predictions, as arrays or dicts of arrays, for one sample or one batch at a time.

    Raises:
        TypeError: If there are no predictions to be split.
        ValueError: If no key of predict_keys exists, or a batch to be split has arrays of different lengths.
    """
    with opened_model(request, target, ModeKeys.PREDICT) as opened:
        model, create, pipeline = opened
        run_log.info("Done calling model_fn.")
        if not pipeline.is_fed:
            _warn_of_endless_input(model)
        predictions = _chosen(model.spec.predictions, predict_keys)
        fetched = tf.nest.flatten(predictions, expand_composites=True)
        if yield_single_examples and not fetched:
            raise TypeError(f"model_fn returned an EstimatorSpec of mode {model.spec.mode} without predictions.")
        hooks = [*request.hooks, *getattr(model.spec, "prediction_hooks", ())]
        creator = SessionCreator(lambda: create(fetched))
        with (
            model.graph.as_default(),
            tf.compat.v1.train.MonitoredSession(session_creator=creator, hooks=hooks) as session,
        ):
            micro_batches = _run_until_stop(session, predictions)
            if yield_single_examples:
                samples = itertools.chain.from_iterable(map(_samples, micro_batches))
                yield from itertools.islice(samples, num_samples)
            else:
                yield from _first_batches(_whole_batches(micro_batches, pipeline), num_samples)


def _run_until_stop(session: Any, predictions: Any) -> Iterator[Any]:
    """Yield the predictions of each micro-batch."""
    while not session.should_stop():
        yield session.run(predictions)


def _whole_batches(micro_batches: Iterator[Any], pipeline: Any) -> Iterator[Any]:
    """Yield the predictions of each batch."""
    parts: list[Any] = []
    for values in micro_batches:
        parts.append(values)
        if pipeline.is_between_batches:
            yield _joined(parts)
            parts = []


def _first_batches(batches: Iterator[Any], num_samples: int | None) -> Iterator[Any]:
    """Yield batches until they hold a number of samples; all for None."""
    given = 0
    for values in batches:
        yield values
        given += 0 if num_samples is None else _length(values)
        if num_samples is not None and given >= num_samples:
            return


def _warn_of_endless_input(model: Model) -> None:
    if model.graph.get_collection(tf.compat.v1.GraphKeys.QUEUE_RUNNERS):
        return
    if not any(tensor.op.type == "IteratorGetNext" for tensor in model.inputs.tensors):
        tf.compat.v1.logging.warn(
            "Input graph does not use tf.data.Dataset or contain a QueueRunner. That means predict yields forever. "
            "This is probably a mistake."
        )


def _joined(parts: list[Any]) -> Any:
    """Return the predictions of a batch from those of its micro-batches. A scalar is that of the first one."""
    if len(parts) == 1:
        return parts[0]
    return tf.nest.map_structure(lambda *values: np.concatenate(values) if np.ndim(values[0]) else values[0], *parts)


def _samples(values: Any) -> Iterator[Any]:
    """Yield the samples of a batch."""
    for number in range(_length(values)):
        if isinstance(values, Mapping):
            yield {key: value[number] for key, value in values.items()}
        else:
            yield values[number]


def _chosen(predictions: Any, keys: Sequence[str] | None) -> Any:
    if keys is None:
        return predictions
    keys = [keys] if isinstance(keys, str) else list(keys)
    if not isinstance(predictions, Mapping):
        raise ValueError("predict_keys argument is not valid in case of non-dict predictions.")
    chosen = {key: value for key, value in predictions.items() if key in keys}
    if not chosen:
        raise ValueError(f"Expected to run at least one output from {predictions.keys()}, provided {keys}.")
    return chosen


def _length(values: Any) -> int:
    if not isinstance(values, Mapping):
        if not np.ndim(values):
            raise TypeError(
                f"the prediction {values!r} is not iterable, since it has no batch dimension. "
                "Use yield_single_examples=False."
            )
        return int(np.shape(values)[0])
    if not any(map(np.ndim, values.values())):
        raise IndexError("no prediction has a batch dimension. Use yield_single_examples=False.")
    lengths = {key: int(np.shape(value)[0]) if np.ndim(value) else -1 for key, value in values.items()}
    if len(set(lengths.values())) != 1 or -1 in lengths.values():
        first = next(iter(lengths.values()))
        other = next((key for key, length in lengths.items() if length != first), next(iter(lengths)))
        raise ValueError(
            f"Batch length of predictions should be same. {other} has different batch length than others: {lengths}. "
            "Use yield_single_examples=False."
        )
    return next(iter(lengths.values()))
