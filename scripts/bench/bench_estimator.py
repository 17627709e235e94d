"""Is training a GPT-2-sized model by our Estimator as fast as by tf.estimator of TensorFlow 2.15?

    python scripts/bench/bench_estimator.py --theirs /path/to/venv-with-tensorflow-2.15/bin/python

Two virtual environments in turn, the same script in each: `tf.estimator.Estimator`, a GPT-2 of 124 M parameters in
plain TensorFlow ops, Adam, no checkpoints. Prints for each side the median step [ms], and the time [s] from the start
of the process to the end of `import` and to the end of the first step; then ours / theirs of the medians, pair by pair.
`VENV=... scripts/test_on_tensorflow.sh 2.15 --co` makes the environment for the other side. About 4 minutes.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
SKIPPED = 3  # steps before the measured ones: caches warm up, threads start


def parser() -> argparse.ArgumentParser:
    """The options."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--theirs", help="Python of an environment with TensorFlow 2.15")
    options.add_argument(
        "--ours", default=sys.executable, help="Python of an environment with this package's TensorFlow"
    )
    options.add_argument("--pairs", type=int, default=4, help="runs of each side, in turn")
    options.add_argument("--steps", type=int, default=15, help="measured steps of a run")
    shape = {"layers": 12, "hidden": 768, "heads": 12, "vocabulary": 50257, "sequence": 128, "batch": 1}
    for name, value in shape.items():
        options.add_argument(f"--{name}", type=int, default=value)
    options.add_argument("--begun", type=float, help=argparse.SUPPRESS)  # in the measured process only
    return options


def model_fn(features: Any, labels: Any, mode: str, params: Any) -> Any:
    """GPT-2 in plain TensorFlow ops. B batch, S sequence, H hidden, N heads, D head size, V vocabulary."""
    import numpy as np
    import tensorflow as tf

    v1 = tf.compat.v1
    hidden, heads, length = params["hidden"], params["heads"], params["sequence"]
    initializer = v1.random_normal_initializer(stddev=0.02)

    def variable(name: str, *shape: int, init: Any = initializer) -> Any:
        return v1.get_variable(name, shape, tf.float32, init)

    def dense(x: Any, name: str, width: int) -> Any:
        with v1.variable_scope(name):
            kernel = variable("kernel", int(x.shape[-1]), width)
            flat = tf.matmul(tf.reshape(x, [-1, int(x.shape[-1])]), kernel)
            flat = tf.nn.bias_add(flat, variable("bias", width, init=v1.zeros_initializer()))
            return tf.reshape(flat, [-1, length, width])

    def norm(x: Any, name: str) -> Any:
        with v1.variable_scope(name):
            mean, variance = tf.nn.moments(x, axes=[-1], keepdims=True)
            gamma = variable("gamma", hidden, init=v1.ones_initializer())
            beta = variable("beta", hidden, init=v1.zeros_initializer())
            return tf.nn.batch_normalization(x, mean, variance, beta, gamma, 1e-5)

    def split(x: Any) -> Any:
        return tf.transpose(tf.reshape(x, [-1, length, heads, hidden // heads]), [0, 2, 1, 3])

    table = variable("wte", params["vocabulary"], hidden)
    x_BSH = tf.gather(table, features["ids"]) + variable("wpe", length, hidden)
    mask_SS = tf.constant((1.0 - np.tril(np.ones([length, length], np.float32))) * -1e9)
    for layer in range(params["layers"]):
        with v1.variable_scope(f"h{layer}"):
            q, k, v = (split(part) for part in tf.split(dense(norm(x_BSH, "ln_1"), "qkv", 3 * hidden), 3, axis=-1))
            weights = tf.nn.softmax(tf.matmul(q, k, transpose_b=True) * (hidden // heads) ** -0.5 + mask_SS)
            mixed = tf.reshape(tf.transpose(tf.matmul(weights, v), [0, 2, 1, 3]), [-1, length, hidden])
            x_BSH += dense(mixed, "proj", hidden)
            x_BSH += dense(tf.nn.gelu(dense(norm(x_BSH, "ln_2"), "fc", 4 * hidden), approximate=True), "out", hidden)
    x_BSH = norm(x_BSH, "ln_f")
    logits = tf.matmul(tf.reshape(x_BSH, [-1, hidden]), table, transpose_b=True)
    loss = tf.reduce_mean(
        tf.nn.sparse_softmax_cross_entropy_with_logits(labels=tf.reshape(labels, [-1]), logits=logits)
    )
    train_op = v1.train.AdamOptimizer(1e-4).minimize(loss, v1.train.get_global_step())
    return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=train_op)


def measured(options: argparse.Namespace) -> dict[str, Any]:
    """Train in this process; return its times."""
    import tensorflow as tf

    if not hasattr(tf, "estimator"):
        sys.path.insert(0, str(ROOT))
        import cerebras_tensorflow  # noqa: F401 - makes tf.estimator ours
    estimator_class = tf.estimator.Estimator
    imported_s = time.time() - options.begun

    def input_fn() -> Any:
        shape = [options.batch, options.sequence]
        ids = tf.random.stateless_uniform(shape, [1, 2], 0, options.vocabulary, tf.int32)
        return tf.data.Dataset.from_tensors(({"ids": ids}, ids)).repeat()

    ends: list[float] = []

    class Clock(tf.compat.v1.train.SessionRunHook):  # type: ignore[misc]
        def after_run(self, run_context: Any, run_values: Any) -> None:
            ends.append(time.time())

    config = tf.estimator.RunConfig(
        save_checkpoints_steps=None, save_checkpoints_secs=None, save_summary_steps=None, log_step_count_steps=None
    )
    shape = ("layers", "hidden", "heads", "vocabulary", "sequence")
    with tempfile.TemporaryDirectory() as folder:
        estimator = estimator_class(model_fn, folder, config, {name: getattr(options, name) for name in shape})
        estimator.train(input_fn, hooks=[Clock()], steps=1 + SKIPPED + options.steps)
    steps = [later - earlier for earlier, later in zip(ends[SKIPPED:], ends[SKIPPED + 1 :], strict=False)]
    return {
        "tensorflow": tf.__version__,
        "class": estimator_class.__module__,
        "import_s": imported_s,
        "first_step_s": ends[0] - options.begun,
        "step_s": statistics.median(steps),
    }


def run(python: str, words: list[str]) -> dict[str, Any]:
    """Measure one process of an environment."""
    command = [python, str(Path(__file__).resolve()), *words, "--begun", repr(time.time())]
    environ = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(command, env=environ, capture_output=True, text=True)
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode or not lines:
        raise SystemExit(f"{python} failed:\n{done.stderr[-3000:]}")
    return dict(json.loads(lines[-1]))


def main() -> None:
    """Compare."""
    options = parser().parse_args()
    if options.begun is not None:
        print(json.dumps(measured(options)))
        return
    if options.theirs is None:
        raise SystemExit("--theirs: name the Python of an environment with TensorFlow 2.15")
    words = [f"--{name}={getattr(options, name)}" for name in ("layers", "hidden", "heads", "vocabulary")]
    words += [f"--{name}={getattr(options, name)}" for name in ("sequence", "batch", "steps")]
    sides: dict[str, list[dict[str, Any]]] = {"ours": [], "theirs": []}
    for pair in range(options.pairs):
        order = ("ours", "theirs") if pair % 2 == 0 else ("theirs", "ours")
        for side in order:
            sides[side].append(run(getattr(options, side), words))
    for side, results in sides.items():
        print(f"{side}: {results[0]['class']} on TensorFlow {results[0]['tensorflow']}")
        for name, factor, unit in (("step_s", 1e3, "ms"), ("import_s", 1, "s"), ("first_step_s", 1, "s")):
            values = [result[name] * factor for result in results]
            print(f"  {name:12} median {statistics.median(values):8.2f} {unit}   all {[round(v, 2) for v in values]}")
    for name in ("step_s", "import_s", "first_step_s"):
        ratios = [a[name] / b[name] for a, b in zip(sides["ours"], sides["theirs"], strict=True)]
        ours, theirs = (statistics.median(result[name] for result in sides[side]) for side in ("ours", "theirs"))
        print(f"ours / theirs, {name}: {ours / theirs:.3f} (pairs {[round(ratio, 3) for ratio in ratios]})")


if __name__ == "__main__":
    main()
