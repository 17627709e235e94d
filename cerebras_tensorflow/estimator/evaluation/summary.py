"""The event file of an evaluation: its results, and the path of the checkpoint."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf
from google.protobuf.message import DecodeError

from cerebras_tensorflow.estimator.event_writers import EventFile
from cerebras_tensorflow.logs import run_log

_TEXT_PLUGIN = "text"  # name of TensorBoard's text plugin


def write_evaluation(folder: str, results: Mapping[str, Any], checkpoint_path: str | None) -> None:
    """Write the results of one evaluation to the event file of a folder.

    As in tf.estimator, a number becomes a scalar and an array a tensor. The values of a serialized Summary (an image, a
    histogram) get the tags `<name>/0`, `<name>/1`, ...

    Args:
        folder: Folder of the event file.
        results: Metric name -> value, with "global_step".
        checkpoint_path: The evaluated checkpoint; None: initial values.
    """
    summary = tf.compat.v1.Summary()
    for key, value in results.items():
        if key != "global_step":
            _add(summary, key, value)
    if checkpoint_path is not None:
        metadata = tf.compat.v1.SummaryMetadata()
        metadata.plugin_data.plugin_name = _TEXT_PLUGIN
        text = tf.make_tensor_proto(os.fsencode(checkpoint_path), tf.string)
        summary.value.add(tag="checkpoint_path", metadata=metadata, tensor=text)
    with tf.Graph().as_default():
        events = EventFile(folder)
        events.add_summary(summary, results["global_step"])
        events.flush()


def _add(summary: Any, key: str, value: Any) -> None:
    if isinstance(value, bytes):
        try:
            parts = tf.compat.v1.Summary.FromString(value).value
        except DecodeError:
            run_log.warning("Skipping summary for %s: a string that is not a serialized Summary.", key)
            return
        for number, part in enumerate(parts):
            part.tag = f"{key}/{number}"
            summary.value.append(part)
        return
    if isinstance(value, (tuple, list, Mapping)):
        run_log.warning("Skipping summary for %s: it is a structure of values, and not one value.", key)
        return
    array = np.asarray(value)
    if array.dtype.kind not in "iuf":
        run_log.warning("Skipping summary for %s: neither a number nor an array of numbers.", key)
    elif array.ndim == 0:
        summary.value.add(tag=key, simple_value=float(array))
    else:
        summary.value.add(tag=key, tensor=tf.make_tensor_proto(array))
