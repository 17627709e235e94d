"""What do several CSX cost? The reduction of gradients, and a training step.

    python scripts/bench/bench_csx.py reduction --mb 500 --rounds 3
    python scripts/bench/bench_csx.py training --layers 12 --hidden 768 --batch 4 --steps 6 --rounds 3

`reduction` adds gradients of the shapes of GPT-2 between two processes: by MPI's Allreduce, as a run does (rank 0
through its relay), and by all_reduce of PyTorch with gloo, if it is installed. `training` runs GPT-2 with Adam in both
modes: one CSX of two threads, and two CSX of one thread each, with the same global batch. Beside them, if installed,
PyTorch's DistributedDataParallel with gloo, and TensorFlow's MultiWorkerMirroredStrategy on a model of Keras: one
process of two threads, and two of one thread. All have the same layers, batch and optimizer, and no dropout; a
micro-batch of ours is half of the global batch. `--ways` limits the ways. Each round runs every way once, in turn, in
new processes.
Prints, as JSON, the median of the rounds [s], the speed of two against one, and of our ways the CPU time of a step in
all processes. Other work of the machine changes the figures: repeat if they spread.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "scripts" / "bench")]
REPEATS = 3  # reductions in a process; the first one is not counted
THREADS = 2
LIMIT_S = 600
MODES = ("weight_streaming", "pipelined")
PEERS = {"pytorch_ddp": ("ddp_gpt2", "torch"), "tensorflow_mwms": ("mwms_gpt2", "keras")}  # module, what it needs
_CHILD = "CS_BENCH_CHILD"


class Times(NamedTuple):
    """How long something took [s].

    Attributes:
        wall: By the clock.
        cpu: CPU time of all processes of the run; 0 if it is not known.
    """

    wall: float
    cpu: float = 0.0


def gradients(megabytes: int) -> list[np.ndarray]:
    """Return gradients with the shapes of GPT-2 124M's, cut off at a total size."""
    hidden = 768
    layer = [(hidden, 3 * hidden), (hidden, hidden), (hidden, 4 * hidden), (4 * hidden, hidden)]
    result, left = [], megabytes * 1_000_000 // 4
    for rows, columns in [(50257, hidden), *layer * 12]:
        size = min(rows * columns, left)
        left -= size
        if size:
            result.append(np.full(size, 1.0, np.float32))
    return result


def timed(reduce: Callable[[], object], barrier: Callable[[], object]) -> float:
    """Return the median time of a reduction [s]."""
    times = []
    for number in range(REPEATS + 1):
        barrier()
        begin = time.perf_counter()
        reduce()
        if number:
            times.append(time.perf_counter() - begin)
    return statistics.median(times)


def main(ranks: Any, folder: Path) -> float:
    """Reduce as a run does. Each rank of the group calls this; the runtime starts the others with it."""
    from cerebras_tensorflow.graph.micro_batches import MicroBatches
    from cerebras_tensorflow.runtime.collectives.totals import Totals
    from cerebras_tensorflow.runtime.micro_batches.share import Share

    megabytes = json.loads((folder / "bench.json").read_text())
    values = gradients(megabytes)
    totals = Totals(ranks, Share.of(MicroBatches(ranks.size, (), (), num_csx=ranks.size), ranks.rank))
    seconds = timed(lambda: totals.dense([[value] for value in values], 1), ranks.barrier)
    (mean, *_) = totals.dense([[values[0]]], 1)
    assert (mean == ranks.size).all(), "the sum is wrong"
    return seconds


def as_in_a_run(megabytes: int) -> float:
    """Time the reduction of a run [s]."""
    from cerebras_tensorflow.runtime.collectives import launch

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "bench.json").write_text(json.dumps(megabytes))
        ranks = launch.start(2, "bench_csx", folder, LIMIT_S)
        try:
            return main(ranks, folder)
        finally:
            ranks.close()


def child_mpi(megabytes: int) -> float:
    """Time MPI's own Allreduce [s]."""
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    values = gradients(megabytes)
    totals = [np.empty_like(value) for value in values]

    def reduce() -> None:
        for value, total in zip(values, totals, strict=True):
            world.Allreduce(value, total)

    seconds = timed(reduce, world.Barrier)
    return seconds if world.Get_rank() == 0 else 0.0


def child_gloo(megabytes: int) -> float:
    """Time all_reduce of PyTorch with gloo [s], which DistributedDataParallel uses on CPUs."""
    import torch.distributed as dist
    from torch import from_numpy

    dist.init_process_group("gloo")
    values = [from_numpy(value) for value in gradients(megabytes)]
    seconds = timed(lambda: [dist.all_reduce(value) for value in values], dist.barrier)
    rank = dist.get_rank()
    dist.destroy_process_group()
    return seconds if rank == 0 else 0.0


def own_process(command: Sequence[str], environ: dict[str, str], way: str, megabytes: int) -> float:
    """Start this script again, and return the time that it prints [s]."""
    done = subprocess.run(
        [*command, str(Path(__file__).resolve()), "reduction", "--mb", str(megabytes)],
        env={**environ, _CHILD: way}, capture_output=True, text=True, check=True, timeout=LIMIT_S,
    )  # fmt: skip
    return max(float(line) for line in done.stdout.split())


def by_mpi(megabytes: int) -> float:
    """Time MPI's Allreduce in processes that MPI starts [s]."""
    from cerebras_tensorflow.runtime.collectives.placement import mpi_command

    with tempfile.TemporaryDirectory() as folder:
        command = mpi_command(2, Path(folder))
        return own_process([*command.words, sys.executable], command.environment, "mpi", megabytes)


def reduction_ways(megabytes: int) -> dict[str, Callable[[], Times]]:
    """Return the ways to reduce, by name."""
    ways: dict[str, Callable[[], Times]] = {
        "mpi_allreduce": lambda: Times(by_mpi(megabytes)),
        "ours": lambda: Times(as_in_a_run(megabytes)),
    }
    try:
        import torch.distributed  # noqa: F401
    except ImportError:
        return ways
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--standalone"]
    ways["pytorch_gloo"] = lambda: Times(own_process(torchrun, dict(os.environ), "gloo", megabytes))
    return ways


def train(mode: str, num_csx: int) -> Times:
    """Train in a new process; return its times."""
    threads = THREADS // num_csx
    words = [sys.executable, str(Path(__file__).resolve()), *sys.argv[1:]]
    way = json.dumps({"num_csx": num_csx, "threads": threads})
    environ = {**os.environ, _CHILD: way, "CEREBRAS_EXECUTION_MODE": mode, "TF_CPP_MIN_LOG_LEVEL": "3"}
    done = subprocess.run(words, env=environ, capture_output=True, text=True, timeout=LIMIT_S)
    if done.returncode:
        raise SystemExit(f"{mode}, {num_csx} CSX failed:\n{done.stderr[-2000:]}")
    return Times(*json.loads(done.stdout.splitlines()[-1]))


def child_train(options: argparse.Namespace, num_csx: int, threads: int) -> Times:
    """Return the median times of a training step of GPT-2."""
    import tensorflow as tf

    from cerebras_tensorflow import CerebrasEstimator, CSConfig, CSRunConfig
    from reference_implementations.gpt2.model import model_fn

    batch = options.batch // num_csx

    def input_fn() -> Any:
        ids = tf.random.stateless_uniform((batch, options.sequence), (1, 2), 0, options.vocabulary, tf.int32)
        return tf.data.Dataset.from_tensors(({"input_ids": ids, "input_mask": tf.ones_like(ids)}, ids)).repeat()

    times: list[Times] = []

    class Clock(tf.compat.v1.train.SessionRunHook):  # type: ignore[misc]
        def before_run(self, run_context: Any) -> None:
            cpu = cpu_time()  # it takes long, so it is not in the timed part
            self.begin = Times(time.perf_counter(), cpu)

        def after_run(self, run_context: Any, run_values: Any) -> None:
            wall = time.perf_counter() - self.begin.wall
            times.append(Times(wall, cpu_time() - self.begin.cpu))

    params = {
        "model": {
            "vocab_size": options.vocabulary, "hidden_size": options.hidden, "num_hidden_layers": options.layers,
            "num_heads": options.hidden // 64, "filter_size": 4 * options.hidden,
            "max_position_embeddings": 1024, "share_embedding_weights": True,
            "dropout_rate": 0.0, "attention_dropout_rate": 0.0,
        },
        "optimizer": {"optimizer_type": "adam", "learning_rate": 1e-4},
    }  # fmt: skip
    folder = tempfile.mkdtemp()
    config = CSRunConfig(
        cs_config=CSConfig(num_csx=num_csx, micro_batch_size=options.batch // 2, weight_store="memory"),
        session_config=tf.compat.v1.ConfigProto(intra_op_parallelism_threads=threads),
        save_checkpoints_steps=10**9,
    )
    try:
        CerebrasEstimator(model_fn, folder, config=config, params=params).train(
            input_fn, steps=options.steps, hooks=[Clock()]
        )
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return Times(*(statistics.median(values) for values in zip(*times[1:], strict=True)))


def cpu_time() -> float:
    """Return the CPU time of this process and all processes that it has started, which live [s]."""
    import psutil

    own = psutil.Process()
    total = 0.0
    for one in (own, *own.children(recursive=True)):
        with suppress(psutil.NoSuchProcess):  # it has ended meanwhile
            total += sum(one.cpu_times()[:2])
    return total


def peer(options: argparse.Namespace, module: str, processes: int) -> Times:
    """Return the time of a training step of a peer, on as many threads as ours has together."""
    heads = options.hidden // 64
    shape = (options.steps, options.layers, options.hidden, heads, options.vocabulary, options.sequence, options.batch)
    words = ["-m", f"peers.{module}", "save", "/unused", *map(str, shape), "0"]
    threads = str(THREADS // processes)
    folder = str(ROOT / "scripts" / "bench")
    environ = {
        **os.environ, "PYTHONPATH": os.pathsep.join([folder, os.environ.get("PYTHONPATH", "")]),
        "OMP_NUM_THREADS": threads, "TF_NUM_INTRAOP_THREADS": threads, "TF_NUM_INTEROP_THREADS": threads,
        "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "",
    }  # fmt: skip
    if module == "ddp_gpt2":
        runner = ["-m", "torch.distributed.run", f"--nproc-per-node={processes}", "--standalone"]
        return Times(printed([[sys.executable, *runner, *words]], [environ]))
    workers = [f"127.0.0.1:{port}" for port in free_ports(processes)]
    tasks = [
        {"cluster": {"worker": workers}, "task": {"type": "worker", "index": number}} for number in range(processes)
    ]
    environs = [{**environ, "TF_CONFIG": json.dumps(task)} for task in tasks]
    return Times(printed([[sys.executable, *words]] * processes, environs))


def printed(commands: list[list[str]], environs: list[dict[str, str]]) -> float:
    """Run commands beside each other; return the last number that they print."""
    pipe = subprocess.PIPE
    running = [
        subprocess.Popen(command, env=environ, stdout=pipe, stderr=pipe, text=True)
        for command, environ in zip(commands, environs, strict=True)
    ]
    try:
        outputs = [one.communicate(timeout=LIMIT_S) for one in running]
    finally:
        for one in running:
            one.kill()
    for one, (_, errors) in zip(running, outputs, strict=True):
        if one.returncode:
            raise SystemExit(f"{one.args} failed:\n{errors[-2000:]}")
    return float("".join(output for output, _ in outputs).split()[-1])


def free_ports(count: int) -> list[int]:
    """Return ports that are free now."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [one.getsockname()[1] for one in sockets]


def training_ways(options: argparse.Namespace) -> dict[str, Callable[[], Times]]:
    """Return the ways to train, by name; each one is followed by the same one on two."""
    ways: dict[str, Callable[[], Times]] = {}
    for mode in MODES:
        ways |= {f"{mode}_{num_csx}": partial(train, mode, num_csx) for num_csx in (1, 2)}
    for name, (module, needed) in PEERS.items():
        if importlib.util.find_spec(needed) is not None:
            ways |= {f"{name}_{processes}": partial(peer, options, module, processes) for processes in (1, 2)}
    wanted = options.ways or [*MODES, *PEERS]
    missing = [name for name in options.ways or () if f"{name}_1" not in ways]
    if missing:
        raise SystemExit(f"not installed: what {', '.join(missing)} needs")
    return {name: way for name, way in ways.items() if name[:-2] in wanted}


def parser() -> argparse.ArgumentParser:
    """Return the parser of the options."""
    result = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    result.add_argument("what", choices=("reduction", "training"))
    numbers = {"mb": 500, "rounds": 3, "layers": 12, "hidden": 768, "vocabulary": 50257, "sequence": 128, "batch": 4}
    for name, value in {**numbers, "steps": 4}.items():
        result.add_argument(f"--{name}", type=int, default=value)
    result.add_argument("--ways", nargs="*", choices=(*MODES, *PEERS), help="ways to train; default: all that can run")
    return result


def run(options: argparse.Namespace) -> None:
    """Run all ways in turn and print the medians."""
    is_training = options.what == "training"
    ways = training_ways(options) if is_training else reduction_ways(options.mb)
    times: dict[str, list[Times]] = {name: [] for name in ways}
    for _ in range(options.rounds):
        for name, way in ways.items():
            times[name].append(way())
            print(name, *(round(value, 3) for value in times[name][-1]), file=sys.stderr, flush=True)
    medians = {name: Times(*map(statistics.median, zip(*values, strict=True))) for name, values in times.items()}
    bases = {name: f"{name[:-1]}1" if is_training else next(iter(ways)) for name in ways}
    print(
        json.dumps(
            {
                "what": options.what,
                "load": os.getloadavg()[0],
                "seconds": {name: round(value.wall, 4) for name, value in medians.items()},
                "cpu_seconds": {name: round(value.cpu, 3) for name, value in medians.items() if value.cpu},
                "speed": {name: round(medians[base].wall / medians[name].wall, 3) for name, base in bases.items()},
                "all": {name: [round(value.wall, 4) for value in values] for name, values in times.items()},
            }
        )
    )


def run_child(child: str, options: argparse.Namespace) -> None:
    """Do the part of a process of its own, and print its time."""
    if options.what == "training":
        print(json.dumps(child_train(options, **json.loads(child))))
        return
    seconds = {"mpi": child_mpi, "gloo": child_gloo}[child](options.mb)
    print(seconds if seconds else "")


if __name__ == "__main__":
    given, name_of_child = parser().parse_args(), os.environ.get(_CHILD)
    if name_of_child is None:
        run(given)
    else:
        run_child(name_of_child, given)
