"""Traces of the micro-batches of a step."""

from __future__ import annotations

import tensorflow as tf

from cerebras_tensorflow.runtime.micro_batches.traces import TracedRuns

v1 = tf.compat.v1


def test_a_trace_needs_run_metadata_and_a_step_does_not() -> None:
    with tf.Graph().as_default(), v1.Session() as session:
        two = tf.constant(1.0) + 1.0
        options = v1.RunOptions(trace_level=v1.RunOptions.FULL_TRACE)
        for metadata in (None, v1.RunMetadata()):
            runs = TracedRuns(session, options, metadata)
            assert runs.run([two], {}) == [2.0]
            runs.add_to_update()
            assert metadata is None or metadata.step_stats.dev_stats
