"""How long does training stop for a checkpoint, and how much does the writing beside it slow the steps down [s, %]?

    python scripts/bench/bench_saving.py --folder /some/disk --layers 6

Blocks of steps without and with a save at their beginning take turns in one run, in both modes and both stores. `stop`
is the time in which no step runs: the call that takes the snapshot, and the wait if the previous write has not ended.
The first save of a run, before its first step, allocates the memory for the copies, so it is printed separately. For
comparison: the time to copy all variables in memory, and the time of the same save when training waits for it.

On a busy machine the wall times say nothing; the processor time of the process, also printed, says more. As root, a
session of its own with a high priority measures almost as on a quiet machine (nice alone does not help where
/proc/sys/kernel/sched_autogroup_enabled is 1):

    setsid --wait bash -c 'echo -20 > /proc/self/autogroup; exec python scripts/bench/bench_saving.py --folder DIR'
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))


def parser() -> argparse.ArgumentParser:
    """Return the parser of the options."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    shape = {"layers": 6, "hidden": 768, "heads": 12, "vocabulary": 50257, "sequence": 128, "batch": 1}
    for name, value in shape.items():
        options.add_argument(f"--{name}", type=int, default=value)
    options.add_argument("--folder", type=Path, required=True, help="a new folder on the disk to measure")
    options.add_argument("--interval", type=int, default=10, help="steps between two saves")
    options.add_argument("--blocks", type=int, default=5, help="blocks of each kind")
    options.add_argument("--format", choices=("tensorflow", "h5"), default="tensorflow")
    return options


def copy_s(session: Any, names: set[str]) -> float:
    """Return the time that copying all variables in memory takes: a memory-backed snapshot [s]."""
    import numpy as np

    begin = time.perf_counter()
    values = (session.read(spec.name) for spec in session.weights() if spec.name in names)
    copies = [value if value.flags.owndata else np.array(value) for value in values]  # some are copies already
    took = time.perf_counter() - begin
    del copies
    return took


class Blocks:
    """Blocks of steps, each with or without a save before it; times them."""

    def __init__(self, session: Any, model: Any, interval: int) -> None:
        self._session = session
        self._fetched = [model.spec.train_op, model.spec.loss]
        self._interval = interval
        self.step = 0

    def run(self, saver: Any = None) -> tuple[float, float, float]:
        """Return the wall and the processor time of a block, and how long its save stopped the training [s]."""
        begin, cpu_begin = time.perf_counter(), time.process_time()
        if saver is not None:
            saver.save(self._session, self.step)
        stop_s = time.perf_counter() - begin
        for _ in range(self._interval):
            self._session.run(self._fetched)
            self.step += 1
        return time.perf_counter() - begin, time.process_time() - cpu_begin, stop_s


def timed(action: Callable[[], object]) -> float:
    """Return how long an action takes [s]."""
    begin = time.perf_counter()
    action()
    return time.perf_counter() - begin


def measured(blocks: Blocks, session: Any, saver: Any, num_blocks: int) -> dict[str, float]:
    """Return medians of blocks without and with a save, by turns, and what else a save takes [s]."""
    blocks.run()
    first_s = blocks.run(saver)[2]
    saver.wait()
    rows = []
    for _ in range(num_blocks):
        plain_s, plain_cpu_s, _ = blocks.run()
        rows.append((plain_s, plain_cpu_s, *blocks.run(saver), timed(saver.wait)))
    medians = (statistics.median(values) for values in zip(*rows, strict=True))
    names = ("without", "cpu_without", "with_save", "cpu_with_save", "stop", "wait")
    result = dict(zip(names, medians, strict=True))
    synchronous_s = timed(lambda: saver.save(session, blocks.step)) + timed(saver.wait)
    return {**result, "first": first_s, "synchronous": synchronous_s}


def measure(options: argparse.Namespace, mode: str, kind: str) -> None:
    """Print the row of one mode and store."""
    import bench_streaming

    from cerebras_tensorflow import CSRunConfig
    from cerebras_tensorflow.compiler.options import StreamingOptions
    from cerebras_tensorflow.compiler.step import compile_step
    from cerebras_tensorflow.estimator.config.run_settings import run_settings
    from cerebras_tensorflow.estimator.training.checkpoint_saver import CheckpointSaver
    from cerebras_tensorflow.estimator.training.ops import training_ops
    from cerebras_tensorflow.graph.program import Residence
    from cerebras_tensorflow.runtime.session import ProgramSession

    shape = argparse.Namespace(**vars(options), optimizer="adam", clip=None, sparsity=None)
    model, pipeline = bench_streaming.build(shape)
    residence = Residence.HOST_MEMORY if kind == "memory" else Residence.STORE
    program = compile_step(training_ops(model).step, mode, StreamingOptions(residence=residence))
    store = bench_streaming.open_store(program, options.folder / "store")
    pipeline.start()
    session = ProgramSession(program, model.graph, model.train_node, store, None, pipeline.next_batch)
    bench_streaming.fill(session, model)
    names = set(model.saved_names())
    model_dir = options.folder / f"{mode}_{kind}"
    config = run_settings(CSRunConfig(keep_checkpoint_max=1, checkpoint_format=options.format))
    with CheckpointSaver(str(model_dir), mode, dict(zip(names, names, strict=True)), config) as saver:
        row = measured(Blocks(session, model, options.interval), session, saver, options.blocks)
    size = sum(spec.num_bytes for spec in session.weights() if spec.name in names)
    slower, share = row["with_save"] / row["without"] - 1, row["stop"] / row["without"]
    print(
        f"{mode:17} {kind:7} {size / 1e9:5.2f} GB  {options.interval} steps {row['without']:6.2f} s, with a save "
        f"{row['with_save']:6.2f} s ({slower * 100:+5.1f} %), processor time {row['cpu_without']:.2f} and "
        f"{row['cpu_with_save']:.2f} s  stop {row['stop']:5.3f} s ({share * 100:4.1f} %), "
        f"the first {row['first']:5.3f} s  left to write after them {row['wait']:5.2f} s  "
        f"copying in memory {copy_s(session, names):5.2f} s  save without training {row['synchronous']:5.2f} s",
        flush=True,
    )
    pipeline.close()
    session.close()
    shutil.rmtree(model_dir)


def main() -> None:
    """Run the benchmark."""
    options = parser().parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    sys.path.insert(0, str(Path(__file__).parent))
    for mode, kind in (("pipelined", "session"), ("weight_streaming", "memory"), ("weight_streaming", "file")):
        measure(options, mode, kind)


if __name__ == "__main__":
    main()
