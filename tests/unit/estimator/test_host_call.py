"""host_call: its form, and metrics over steps in a graph of their own."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from cerebras_tensorflow.estimator.host_call import HostMetrics, host_call_to_eval_metric_ops, validate_host_call

v1 = tf.compat.v1


def means(*values: Any) -> Any:
    return {f"mean_{number}": v1.metrics.mean(value) for number, value in enumerate(values)}


@pytest.mark.parametrize(
    "host_call, text",
    [
        (3, "iterable with length 2 or 3. Instead received 3"),
        ((means,), "iterable with length 2 or 3"),
        ((1, []), "Expected first item of `host_call` to be a callable. Instead received <class 'int'>"),
        ((means, 1), "Expected second item of `host_call` to be an iterable. Instead received <class 'int'>"),
        ((means, [], 1), "Expected third item of `host_call` to be an iterable"),
    ],
)
def test_a_malformed_host_call_is_refused(host_call: Any, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        validate_host_call(host_call)


def test_metrics_of_a_sequence_get_names_and_other_values_are_dropped() -> None:
    with tf.Graph().as_default():
        value = tf.constant([1.0])
        metrics = host_call_to_eval_metric_ops((lambda v: [v1.metrics.mean(v), "text", v1.metrics.mean(v)], [value]))
        assert list(metrics) == ["elem_0", "elem_2"]
        with pytest.raises(ValueError, match="Invalid `eval_metric_ops` of type"):
            host_call_to_eval_metric_ops((lambda v: v, [value]))


def test_metrics_run_over_all_steps_on_the_values_of_the_device() -> None:
    with tf.Graph().as_default():
        a, b = tf.constant([0.0, 0.0]), tf.constant(0.0)
        host = HostMetrics((means, [a, b]))
        assert host.fetches == [a, b]
    host.update([np.array([1.0, 3.0], np.float32), np.float32(10)])
    host.update([np.array([5.0, 7.0], np.float32), np.float32(20)])
    results = host.results()
    host.close()
    assert results == {"mean_0": 4.0, "mean_1": 15.0}


def test_a_host_call_without_metrics_gives_no_results() -> None:
    with tf.Graph().as_default():
        host = HostMetrics((lambda v: {"text": "none"}, [tf.constant(0.0)]))
    host.update([np.float32(1)])
    assert host.results() == {}
    host.close()
