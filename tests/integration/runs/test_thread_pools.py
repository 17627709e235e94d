"""The number of threads that a caller sets for TensorFlow holds, although a run uses other sessions first."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

SCRIPT = """
import os, sys, threading
import tensorflow as tf
from cerebras_tensorflow import CerebrasEstimator, CSConfig, CSRunConfig
v1 = tf.compat.v1

def model_fn(features, labels, mode, params):
    loss = tf.reduce_mean((features @ v1.get_variable("w", [8, 4])) ** 2)
    step = v1.train.get_or_create_global_step()
    return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=v1.train.AdamOptimizer(0.1).minimize(loss, step))

class Count(v1.train.SessionRunHook):
    def end(self, session):
        name = open("/proc/self/comm").read()  # TensorFlow's names of these threads are too long for Linux
        others = set(os.listdir("/proc/self/task")) - {str(one.native_id) for one in threading.enumerate()}
        print("threads", sum(open(f"/proc/self/task/{one}/comm").read() == name for one in others))

threads = v1.ConfigProto(intra_op_parallelism_threads=int(sys.argv[2]))
config = CSRunConfig(cs_config=CSConfig(min_stream_bytes=16), session_config=threads)
CerebrasEstimator(model_fn, sys.argv[1], config=config).train(
    lambda: tf.data.Dataset.from_tensors((tf.ones([2, 8]), tf.ones([2]))).repeat(), steps=2, hooks=[Count()]
)
"""


@pytest.mark.parametrize("mode", ["weight_streaming", "pipelined"])
def test_a_run_has_as_many_threads_as_session_config_says(mode: str, tmp_path: Path, warm_python: list[str]) -> None:
    wanted = (os.cpu_count() or 1) + 7
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    words = [*warm_python, str(script), str(tmp_path / "run"), str(wanted)]
    environ = {**os.environ, "CEREBRAS_EXECUTION_MODE": mode}
    done = subprocess.run(words, env=environ, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    (count,) = [int(line.split()[1]) for line in done.stdout.splitlines() if line.startswith("threads ")]
    assert count >= wanted
