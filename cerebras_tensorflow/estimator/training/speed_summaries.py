"""Scalars of a run for TensorBoard in model_dir/train, with the tags of the published runs."""

from __future__ import annotations

import os
from typing import Any

import tensorflow as tf

from cerebras_tensorflow.estimator.event_writers import EventFile
from cerebras_tensorflow.perf.meter import Meter
from cerebras_tensorflow.runtime.host.memory import resident_bytes

_KEEP = 0.4  # share of the previous rate in local_samples_per_sec, as published for releases 1.8 to 2.1


class SpeedSummaries:
    """Writes one point of each curve.

    Args:
        model_dir: Its folder `train` gets the event file.
        meter: Measures the run.
    """

    def __init__(self, model_dir: str, meter: Meter) -> None:
        self._file = EventFile(os.path.join(model_dir, "train"))
        self._meter = meter
        self._rate = 0.0
        self._before = (0.0, 0)

    def write(self, step: int, loss: float) -> None:
        """Write the values after a step."""
        meter = self._meter
        elapsed_s, samples = meter.elapsed_s, meter.samples
        length_s, count = elapsed_s - self._before[0], samples - self._before[1]
        self._before = (elapsed_s, samples)
        now = count / length_s if length_s > 0 else 0.0
        self._rate = (1 - _KEEP) * now + _KEEP * self._rate if self._rate else now
        overall = meter.overall_speed()
        values: dict[str, Any] = {
            "loss": loss,
            "local_samples_per_sec": self._rate,
            "avg_samples_per_sec": overall.samples_per_s,
            "avg_steps_per_sec": overall.steps_per_s,
            "host/resident_bytes": resident_bytes(),
            "host/input_wait_share": meter.input_wait_share,
        }
        points = [tf.compat.v1.Summary.Value(tag=tag, simple_value=float(value)) for tag, value in values.items()]
        self._file.add_summary(tf.compat.v1.Summary(value=points), step)

    def flush(self) -> None:
        """Write everything to the file."""
        self._file.flush()
