"""The settings of a Program's session."""

from __future__ import annotations

import threading

import numpy as np
import tensorflow as tf

from cerebras_tensorflow.runtime.session import session_settings

v1 = tf.compat.v1


def test_store_calls_run_in_parallel_whatever_threads_the_first_session_had() -> None:
    v1.Session(graph=tf.Graph()).close()
    together = threading.Barrier(5, timeout=30)

    def wait() -> np.int64:
        together.wait()
        return np.int64(1)

    with tf.Graph().as_default() as graph:
        calls = [tf.numpy_function(wait, [], tf.int64) for _ in range(together.parties)]
        with v1.Session(graph=graph, config=session_settings(None, is_streaming=True)) as session:
            assert session.run(calls) == [1] * together.parties


def test_a_users_number_of_threads_is_kept() -> None:
    settings = session_settings(v1.ConfigProto(inter_op_parallelism_threads=3), is_streaming=True)
    assert settings.inter_op_parallelism_threads == 3 and not settings.use_per_session_threads


def test_streaming_builds_only_the_ops_of_a_run() -> None:
    """TensorFlow refuses an op on a device that does not exist, unless no run needs the op."""
    with tf.Graph().as_default() as graph:
        one = tf.constant(1)
        with tf.device("/job:elsewhere/task:0/device:CPU:0"):
            one + 1
        with v1.Session(graph=graph, config=session_settings(None, is_streaming=True)) as session:
            assert session.run(one) == 1
    assert not session_settings(None, is_streaming=False).graph_options.place_pruned_graph
