"""How long do several CSX take to save and to load a checkpoint, in weight streaming and pipelined?

    python scripts/bench/bench_csx_checkpoint.py --gigabytes 2 --rounds 3 [--folder DIR]

Each round trains one step and saves, on one CSX and on two; then it loads that checkpoint on one CSX, on two with
`read_once`, and on two without. It loads twice, and the second time counts: the start of the processes does not.
Prints the median of the rounds [s] as JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
_CHILD = "CS_BENCH_CHILD"
_WEIGHT_BYTES = 16 << 20
_LIMIT_S = 300
WS, PIPELINED = "weight_streaming", "pipelined"
WAYS = {"save on 1": (1, True, WS), "save on 2": (2, True, WS), "load on 1": (1, True, WS)}
WAYS |= {"load on 2, read_once": (2, True, WS), "load on 2, each reads": (2, False, WS)}
WAYS |= {"save pipelined on 1": (1, True, PIPELINED), "save pipelined on 2": (2, True, PIPELINED)}


def child(way: dict[str, Any]) -> None:
    """Train up to a step; print the seconds that the save and the load took."""
    import numpy as np
    import tensorflow as tf

    from cerebras_tensorflow import CerebrasEstimator, CSConfig, CSRunConfig
    from cerebras_tensorflow.estimator.training import checkpoints
    from cerebras_tensorflow.estimator.training.checkpoint_saver import CheckpointSaver

    v1 = tf.compat.v1
    times: dict[str, float] = {}
    write = CheckpointSaver._write_snapshot  # noqa: SLF001

    def timed(self: Any, path: str, saved_at_s: float, snapshot: Any) -> None:
        begin = time.perf_counter()
        write(self, path, saved_at_s, snapshot)
        times["save"] = time.perf_counter() - begin

    def model_fn(features: Any, labels: Any, mode: str, params: Any) -> Any:
        side = int((_WEIGHT_BYTES / 4) ** 0.5)
        x = features
        for number in range(way["weights"]):
            x = tf.tanh(x @ v1.get_variable(f"w{number}", [side, side])) * 0.1
        loss = tf.reduce_mean(x)
        return tf.estimator.EstimatorSpec(
            mode, loss=loss, train_op=v1.train.AdamOptimizer(0.01).minimize(loss, v1.train.get_global_step())
        )

    def input_fn() -> Any:
        x = np.ones((4, int((_WEIGHT_BYTES / 4) ** 0.5)), np.float32)
        return tf.data.Dataset.from_tensors((x, x[:, 0])).repeat()

    restore = checkpoints.restore

    def timed_restore(session: Any, path: str, keys: Any) -> None:
        started = Path(way["model_dir"]) / "csx" / "peer-1.json"
        while way["num_csx"] > 1 and not started.exists():
            time.sleep(0.05)
        for _ in range(2):
            begin = time.perf_counter()
            restore(session, path, keys)
            times["load"] = time.perf_counter() - begin

    checkpoints.restore = timed_restore
    CheckpointSaver._write_snapshot = timed  # type: ignore[method-assign]  # noqa: SLF001
    settings = CSConfig(num_csx=way["num_csx"], micro_batch_size=4, weight_store="memory", read_once=way["read_once"])
    config = CSRunConfig(cs_config=settings, save_summary_steps=None, save_checkpoints_steps=1_000_000)
    CerebrasEstimator(model_fn, way["model_dir"], config=config).train(input_fn, max_steps=way["steps"])
    print(json.dumps(times))


def measure(name: str, folder: Path, num_weights: int) -> float:
    """Return the seconds of one way."""
    num_csx, read_once, mode = WAYS[name]
    what, steps = ("save", 1) if name.startswith("save") else ("load", 2)
    run, kept = folder / "run", folder / "kept"
    shutil.rmtree(run, ignore_errors=True)
    if what == "load":  # always from the checkpoint of step 1
        shutil.copytree(kept, run)
    way = {"num_csx": num_csx, "read_once": read_once, "model_dir": str(run), "steps": steps, "weights": num_weights}
    environment = {**os.environ, _CHILD: json.dumps(way), "CEREBRAS_EXECUTION_MODE": mode}
    environment["CEREBRAS_HOME"] = str(folder / "home")
    done = subprocess.run(
        [sys.executable, __file__], env=environment, cwd=ROOT, capture_output=True, text=True, timeout=_LIMIT_S
    )
    if done.returncode:
        raise SystemExit(done.stderr[-3000:])
    if what == "save" and mode == WS and not kept.exists():
        shutil.copytree(run, kept)
    return float(json.loads(done.stdout.splitlines()[-1])[what])


def main() -> None:
    """Measure, and print the medians."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gigabytes", type=float, default=2.0, help="size of the checkpoint [GB]")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS), help="a load needs a save before it")
    parser.add_argument("--folder", help="where to write; by default a temporary folder")
    given = parser.parse_args()
    num_weights = max(2, round(given.gigabytes * 1e9 / _WEIGHT_BYTES / 3))
    results: dict[str, list[float]] = {name: [] for name in given.ways}
    with tempfile.TemporaryDirectory(dir=given.folder) as folder:
        for _ in range(given.rounds):
            for name in given.ways:
                results[name].append(measure(name, Path(folder), num_weights))
                print(name, f"{results[name][-1]:.2f} s", file=sys.stderr)
    print(json.dumps({name: round(statistics.median(times), 2) for name, times in results.items()}))


if __name__ == "__main__":
    if _CHILD in os.environ:
        sys.path[:0] = [str(ROOT)]
        child(json.loads(os.environ[_CHILD]))
    else:
        main()
