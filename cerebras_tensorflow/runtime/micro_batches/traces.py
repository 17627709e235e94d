"""Records the ops of all micro-batches of a step, if the caller asks TensorFlow for a trace."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf


class TracedRuns:
    """Runs the micro-batches of one step.

    Args:
        session: The TensorFlow session.
        options: RunOptions of the step; None: there is no trace.
        run_metadata: Gets the trace; None: there is none.
    """

    def __init__(self, session: Any, options: Any, run_metadata: Any) -> None:
        self._session = session
        self._run_metadata = run_metadata
        is_traced = options is not None and options.trace_level and run_metadata is not None
        self._options = options if is_traced else None
        self._traces: list[Any] = []

    def run(self, fetches: Sequence[Any], feeds: Mapping[Any, Any]) -> Sequence[np.ndarray]:
        """Run tensors with feeds."""
        trace = None
        if self._options is not None:
            trace = tf.compat.v1.RunMetadata()
            self._traces.append(trace)
        values: Sequence[np.ndarray] = self._session.run(fetches, feeds, options=self._options, run_metadata=trace)
        return values

    def add_to_update(self) -> None:
        """Add the ops of the micro-batches to the trace of the update."""
        for trace in self._traces:
            self._run_metadata.step_stats.dev_stats.extend(trace.step_stats.dev_stats)
