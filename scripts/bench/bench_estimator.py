"""Compares the training speed of our Estimator and of tf.estimator in TensorFlow 2.15.

    python scripts/bench/bench_estimator.py --theirs /path/to/venv-with-tensorflow-2.15/bin/python

It runs the same script in two virtual environments, without checkpoints and summaries, with the same seed and the
default threads. --model chooses the model: `gpt2` has 124 M parameters in plain TensorFlow ops and Adam;
`dnn_classifier` is tf.estimator.DNNClassifier on numbers and embedded words, whose steps are short. The method allows
for other work on the machine:
- both processes of a pair are alive and run blocks of steps in turn, A B B A, while the other one waits;
- the processes start one after the other, in an order that changes from pair to pair;
- CPU seconds of the process, user and system, are printed next to wall time, and all figures are medians.

| phase | from, to |
|---|---|
| import | start of the process; TensorFlow and tf.estimator are there |
| input | model_fn starts; before it run input_fn and the making of placeholders |
| model_fn | it returns |
| graph | hooks begin: summaries, the step's graph |
| session | hooks have a session: ours compiles the step (compile) and makes the initial values; theirs initializes |
| first | the first step is done |

`start` is their sum; `step` one later step. Ratios are ours / theirs: of the medians, and of each pair. Other sides, by
--sides: `cerebras` is CerebrasEstimator, whose steps TensorFlow does not fuse, so that they agree with weight streaming
to the last bit; `session` TensorFlow's own MonitoredSession on ours's TensorFlow, without our code; `checkpoints` is
ours with checkpoints at step 0 and at the end, which add to `session` but to no step; `profiled` is `cerebras` with an
op_profiler_config that records every step. The same side twice shows the noise.
`VENV=... scripts/test_on_tensorflow.sh 2.15 --co` makes the environment for the other side. About 4 minutes, 6 GB.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
WARM_STEPS = 3  # the first, and those in which caches warm up and threads start
MODELS = ("gpt2", "dnn_classifier")
PHASES = ("import", "input", "model_fn", "graph", "session", "first")
WORDS, NUMBERS, ROWS = 8, 20, 12_800  # size of the table for dnn_classifier
SHAPE = {"layers": 12, "hidden": 768, "heads": 12, "vocabulary": 50257, "sequence": 128, "batch": 1}
CLOCKS = ("wall", "cpu")
SIDES = ("ours", "theirs", "cerebras", "session", "checkpoints", "profiled")


def parser() -> argparse.ArgumentParser:
    """Return the parser of the options."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--theirs", help="Python of an environment with TensorFlow 2.15")
    options.add_argument(
        "--ours", default=sys.executable, help="Python of an environment with this package's TensorFlow"
    )
    options.add_argument("--sides", default="ours,theirs", help=f"two of {', '.join(SIDES)}; the first over the second")
    options.add_argument("--model", choices=MODELS, default=MODELS[0])
    options.add_argument("--pairs", type=int, default=4, help="pairs of processes")
    options.add_argument("--blocks", type=int, default=6, help="blocks of steps of each process")
    options.add_argument("--steps", type=int, default=4, help="steps of a block")
    for name, value in SHAPE.items():
        options.add_argument(f"--{name}", type=int, default=value)
    options.add_argument("--side", choices=SIDES, help=argparse.SUPPRESS)  # in the measured process only
    options.add_argument("--begun", type=float, help=argparse.SUPPRESS)
    return options


def gpt2(features: Any, labels: Any, params: Any) -> tuple[Any, Any]:
    """Return loss and train op of GPT-2 in plain TensorFlow ops.

    B batch, S sequence, H hidden, N heads, D head size, V vocabulary.
    """
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
    return loss, v1.train.AdamOptimizer(1e-4).minimize(loss, v1.train.get_global_step())


def dnn_classifier(features: Any, labels: Any) -> tuple[Any, Any]:
    """Return loss and train op of a DNNClassifier."""
    import tensorflow as tf

    column = tf.feature_column
    words = [column.categorical_column_with_hash_bucket(f"word{number}", 10_000) for number in range(WORDS)]
    columns = [column.numeric_column("x", (NUMBERS,)), *(column.embedding_column(each, 16) for each in words)]
    spec = tf.estimator.DNNClassifier([256, 128, 64], columns).model_fn(features, labels, "train", None)
    return spec.loss, spec.train_op


def batches(options: argparse.Namespace) -> Any:
    """Return the Dataset of a model: one repeated batch for gpt2, rows of a table for dnn_classifier."""
    import numpy as np
    import tensorflow as tf

    if options.model == "gpt2":
        ids = tf.random.stateless_uniform([options.batch, options.sequence], [1, 2], 0, options.vocabulary, tf.int32)
        return tf.data.Dataset.from_tensors(({"ids": ids}, ids)).repeat()
    numbers = np.random.RandomState(0)
    features = {f"word{column}": numbers.randint(0, 10**6, ROWS).astype(str) for column in range(WORDS)}
    features["x"] = numbers.rand(ROWS, NUMBERS).astype(np.float32)
    return tf.data.Dataset.from_tensor_slices((features, numbers.randint(0, 2, ROWS))).batch(128).repeat()


@dataclass(frozen=True)
class Moment:
    """A point of time: of the wall, and CPU seconds of the process, user and system."""

    wall_s: float
    cpu_s: float

    @staticmethod
    def now() -> Moment:
        """Return the current moment."""
        usage = resource.getrusage(resource.RUSAGE_SELF)
        return Moment(time.time(), usage.ru_utime + usage.ru_stime)

    def since(self, other: Moment) -> dict[str, float]:
        """Return the wall and CPU time since another moment [s]."""
        return {"wall": self.wall_s - other.wall_s, "cpu": self.cpu_s - other.cpu_s}


def tell(values: dict[str, Any]) -> None:
    """Send a line to the comparing process."""
    print(json.dumps(values), flush=True)


def steps_in_blocks(marks: dict[str, Moment], block: int) -> Any:
    """Return a hook that marks the phases. For each line on stdin it runs a block of steps and sends a step's time.

    It stops the run at the end of stdin.
    """
    import tensorflow as tf

    class Blocks(tf.compat.v1.train.SessionRunHook):
        def __init__(self) -> None:
            self._steps = 0
            self._begin: Moment | None = None

        def begin(self) -> None:
            marks["graph"] = Moment.now()

        def after_create_session(self, session: Any, coord: Any) -> None:
            marks["session"] = Moment.now()

        def after_run(self, run_context: Any, run_values: Any) -> None:
            self._steps += 1
            if self._steps == 1:
                marks["first"] = Moment.now()
            if self._steps < WARM_STEPS or (self._steps - WARM_STEPS) % block:
                return
            passed = Moment.now().since(self._begin) if self._begin else {}
            tell({name: value / block for name, value in passed.items()})
            if not sys.stdin.readline():
                run_context.request_stop()
            self._begin = Moment.now()

    return Blocks()


def train_in_session(made: Any, input_fn: Any, hook: Any, params: dict[str, Any]) -> None:
    """Train by TensorFlow's own MonitoredSession: what tf.estimator does, less its checks."""
    import tensorflow as tf

    with tf.Graph().as_default():
        tf.compat.v1.set_random_seed(1)
        tf.compat.v1.train.create_global_step()
        features, labels = tf.compat.v1.data.make_one_shot_iterator(input_fn()).get_next()
        loss, train_op = made(features, labels, "train", params)
        with tf.compat.v1.train.MonitoredSession(hooks=[hook]) as session:
            while not session.should_stop():
                session.run([train_op, loss])


def measured(options: argparse.Namespace) -> None:
    """Train in this process and send its times."""
    if options.side != "theirs" and (options.side != "session" or options.model != "gpt2"):
        sys.path.insert(0, str(ROOT))
        import cerebras_tensorflow as ours  # makes tf.estimator ours
    import tensorflow as tf

    kind: Any = None
    if options.side in ("cerebras", "profiled"):
        kind = ours.CerebrasEstimator
    elif options.side != "session":
        kind = tf.estimator.Estimator
    marks = {"start": Moment(options.begun, 0.0), "import": Moment.now()}

    def input_fn() -> Any:
        return batches(options)

    def made(features: Any, labels: Any, mode: str, params: Any) -> Any:
        marks["input"] = Moment.now()
        is_gpt2 = options.model == "gpt2"
        loss, train_op = gpt2(features, labels, params) if is_gpt2 else dnn_classifier(features, labels)
        marks["model_fn"] = Moment.now()
        return (loss, train_op) if kind is None else tf.estimator.EstimatorSpec(mode, loss=loss, train_op=train_op)

    hook = steps_in_blocks(marks, options.steps)
    params = {name: getattr(options, name) for name in SHAPE}
    answer: dict[str, Any] = {"tensorflow": tf.__version__, "by": f"{kind.__module__}" if kind else "a session"}
    with tempfile.TemporaryDirectory() as folder:
        if kind is None:
            train_in_session(made, input_fn, hook, params)
        else:
            settings: dict[str, Any] = {
                "tf_random_seed": 1,
                "save_checkpoints_steps": 10**6 if options.side == "checkpoints" else None,
                "save_checkpoints_secs": None,
                "save_summary_steps": None,
                "log_step_count_steps": None,
            }
            if options.side == "profiled":
                cs_config = ours.CSConfig(op_profiler_config={"start_step": 1, "end_step": 10**6})
                config = ours.CSRunConfig(cs_config=cs_config, **settings)
            else:
                config = tf.estimator.RunConfig(**settings)
            kind(made, folder, config=config, params=params).train(input_fn, hooks=[hook])
        performance = Path(folder) / "performance" / "performance.json"
        if performance.exists():
            answer["compile_s"] = json.loads(performance.read_text())["compile_time"]
    names = ("start", *PHASES)
    answer["phases"] = {name: marks[name].since(marks[before]) for before, name in itertools.pairwise(names)}
    answer["phases"]["start"] = marks["first"].since(marks["start"])
    tell(answer)


class Side:
    """A process that trains one side.

    Raises:
        SystemExit: From its methods, if it fails.
    """

    def __init__(self, python: str, side: str, options: argparse.Namespace, errors: Any) -> None:
        words = [f"--{name}={getattr(options, name)}" for name in (*SHAPE, "steps")]
        words += [f"--side={side}", f"--model={options.model}", f"--begun={time.time()!r}"]
        environ = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1"}
        environ.pop("PYTHONDONTWRITEBYTECODE", None)  # an installed package has its bytecode, as the other side has
        self._errors = errors
        self._command = [python, str(Path(__file__).resolve()), *words]
        self._process = subprocess.Popen(
            self._command,
            env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True,
        )  # fmt: skip
        self._answer()

    def block(self) -> dict[str, float]:
        """Run a block of steps; return the times of a step [s]."""
        assert self._process.stdin is not None
        print(file=self._process.stdin, flush=True)
        return self._answer()

    def end(self) -> dict[str, Any]:
        """End the run; return its phases."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        result = self._answer()
        self._process.wait()
        return result

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("{"):
                return dict(json.loads(line))
        self._errors.seek(0)
        raise SystemExit(f"{' '.join(self._command)} failed:\n{self._errors.read()[-3000:]}")


def pair(names: tuple[str, str], is_turned: bool, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Measure one process of each side; return its answer, with the step times of each block under "steps"."""
    order = [1, 0] if is_turned else [0, 1]
    with tempfile.TemporaryFile("w+") as errors:
        live = {
            number: Side(options.theirs if names[number] == "theirs" else options.ours, names[number], options, errors)
            for number in order
        }
        steps: dict[int, list[dict[str, float]]] = {number: [] for number in order}
        for turn in range(options.blocks):
            for number in order if turn % 2 == 0 else order[::-1]:
                steps[number].append(live[number].block())
        return [{**live[number].end(), "steps": steps[number]} for number in (0, 1)]


def rows(results: list[list[dict[str, Any]]], number: int) -> dict[str, dict[str, list[float]]]:
    """Return phase -> "wall" or "cpu" -> values [s] of a side: one of each process, but of each block for "step"."""
    found: dict[str, dict[str, list[float]]] = {}
    for phase in (*PHASES, "start"):
        found[phase] = {clock: [result[number]["phases"][phase][clock] for result in results] for clock in CLOCKS}
    blocks = [block for result in results for block in result[number]["steps"]]
    found["step"] = {clock: [block[clock] for block in blocks] for clock in CLOCKS}
    return found


def table(results: list[list[dict[str, Any]]], names: tuple[str, str]) -> Iterator[str]:
    """Yield the lines of the answer."""
    for number, name in enumerate(names):
        one = results[0][number]
        compiled = [result[number]["compile_s"] for result in results if "compile_s" in result[number]]
        text = f", of whose session {statistics.median(compiled):.2f} s of the wall are compile" if compiled else ""
        yield f"{name}: {one['by']} on TensorFlow {one['tensorflow']}{text}"
    yield f"medians of {len(results)} pairs [s]; ratio {names[0]} / {names[1]} of medians (least - most of pairs)"
    first, second = rows(results, 0), rows(results, 1)
    for phase in first:
        line = f"  {phase:9}"
        for clock in CLOCKS:
            values, others = first[phase][clock], second[phase][clock]
            middle, other = statistics.median(values), statistics.median(others)
            ratios = [a / b for a, b in zip(values, others, strict=True)]
            spread = f"({min(ratios):.2f} - {max(ratios):.2f})"
            line += f" {clock} {middle:7.3f} / {other:7.3f} = {middle / other:5.2f} {spread:13}"
        yield line.rstrip()


def main() -> None:
    """Run the benchmark and print its tables."""
    options = parser().parse_args()
    if options.side is not None:
        measured(options)
        return
    sides = options.sides.split(",")
    if len(sides) != 2 or not {*sides} <= {*SIDES}:
        raise SystemExit(f"--sides {options.sides}: expected two of {', '.join(SIDES)}, as in ours,theirs")
    if "theirs" in sides and options.theirs is None:
        raise SystemExit("--theirs: name the Python of an environment with TensorFlow 2.15")
    names = (sides[0], sides[1])
    results: list[list[dict[str, Any]]] = []
    for number in range(options.pairs):
        results.append(pair(names, number % 2 == 1, options))
        print("\n".join(table(results, names)), flush=True)  # after each pair, because a long run may be interrupted


if __name__ == "__main__":
    main()
