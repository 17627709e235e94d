"""How much memory and time does a training step of a GPT shape take, pipelined or streamed?

    python scripts/bench/bench_streaming.py --layers 24 --hidden 2048 --heads 16 --vocabulary 50257 --sequence 128 \
        --batch 1 --mode weight_streaming --store file --steps 3

Prints the measured step time [s] (median), the bytes that the store moved, the process's peak resident set [bytes] and
the prediction of the memory plan. `--plan` only compiles and prints the plan, without weights.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))


def parser() -> argparse.ArgumentParser:
    """Return the parser of the options."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    shape = {"layers": 12, "hidden": 768, "heads": 12, "vocabulary": 50257, "sequence": 128, "batch": 1, "steps": 3}
    for name, value in shape.items():
        options.add_argument(f"--{name}", type=int, default=value)
    options.add_argument("--mode", choices=("pipelined", "weight_streaming"), default="weight_streaming")
    options.add_argument("--store", choices=("memory", "mapped", "file"), default="file")
    options.add_argument("--store-dir", default="/tmp/bench_streaming")
    options.add_argument("--optimizer", default="adam", choices=("adam", "adamw", "sgd", "momentum"))
    options.add_argument("--window-mb", type=int, help="bytes of weights in memory at a time, in MB")
    options.add_argument("--memory-budget", help="most memory that the process may take, as in 4GB")
    options.add_argument("--clip", type=float, help="global norm to clip gradients to")
    options.add_argument("--sparsity", type=float, default=0.0, help="share of the weights to mask, static and random")
    options.add_argument("--no-packing", action="store_true", help="move the zeros of sparse weights too")
    options.add_argument("--plan", action="store_true", help="compile and print the plan only")
    options.add_argument("--cold", action="store_true", help="drop the store's pages from the cache before each step")
    options.add_argument("--direct", action="store_true", help="bypass the page cache with all weights of a file store")
    return options


def build(options: argparse.Namespace) -> Any:
    """Return the model: a GPT-2 shape's training graph."""
    import tensorflow as tf

    from cerebras_tensorflow import CSRunConfig
    from cerebras_tensorflow.estimator.config.run_settings import run_settings
    from cerebras_tensorflow.estimator.model.inputs import InputPipeline
    from cerebras_tensorflow.estimator.model.model_call import call_model_fn
    from cerebras_tensorflow.sparsity import configure
    from reference_implementations.gpt2.model import model_fn

    shape = (options.batch, options.sequence)

    def input_fn() -> Any:
        ids = tf.random.stateless_uniform(shape, (1, 2), 0, options.vocabulary, tf.int32)
        features = {"input_ids": ids, "input_mask": tf.ones(shape, tf.int32)}
        return tf.data.Dataset.from_tensors((features, ids)).repeat()

    params = {
        "model": {
            "vocab_size": options.vocabulary, "hidden_size": options.hidden, "num_hidden_layers": options.layers,
            "num_heads": options.heads, "filter_size": 4 * options.hidden,
            "max_position_embeddings": max(1024, options.sequence), "share_embedding_weights": True,
        },
        "optimizer": {"optimizer_type": options.optimizer, "learning_rate": 1e-4, "max_gradient_norm": options.clip},
    }  # fmt: skip
    settings = run_settings(CSRunConfig())
    pipeline = InputPipeline(input_fn, None, "train", settings)
    sparsity = configure(options.sparsity) if options.sparsity else None
    model = call_model_fn(model_fn, pipeline, "train", params, settings, sparsity=sparsity)
    return model, pipeline


def fill(session: Any, model: Any) -> None:
    """Give every variable a cheap initial value: small noise in the weights, zeros in the slots."""
    import numpy as np

    noise = np.random.default_rng(0).normal(0, 0.02, 1 << 20).astype(np.float32)
    sparse = {weight.mask: weight for weight in model.sparse}
    for name, variable in model.saved_names().items():
        shape = variable.shape.as_list()
        is_slot = "/Adam" in name or name.endswith("Momentum")
        if not shape or is_slot or name.endswith(("beta", "bias")):
            value: Any = np.zeros(shape, variable.dtype.base_dtype.as_numpy_dtype)
            value = value + np.asarray(0.9, value.dtype) if name.startswith("beta") else value
        elif name.endswith("gamma"):
            value = np.ones(shape, np.float32)
        else:
            value = np.resize(noise, shape)
        if name in sparse:
            value = sparse[name].algorithm.first_mask(sparse[name].name, value)
            session.load(sparse[name].name, np.where(value, np.resize(noise, shape), np.float32(0)))
        if name not in {weight.name for weight in model.sparse}:
            session.load(name, value)


def streaming_options(options: argparse.Namespace) -> Any:
    """Return the compiler's options."""
    from cerebras_tensorflow.compiler.options import StreamingOptions
    from cerebras_tensorflow.graph.program import Residence
    from cerebras_tensorflow.runtime.host.memory import resident_bytes
    from cerebras_tensorflow.units import parse_size

    residences = {"memory": Residence.HOST_MEMORY, "mapped": Residence.MAPPED_FILE, "file": Residence.STORE}
    return StreamingOptions(
        window_bytes=options.window_mb * 10**6 if options.window_mb else None,
        memory_budget=parse_size(options.memory_budget) if options.memory_budget else None,
        process_bytes=resident_bytes(),
        residence=residences[options.store],
    )


def open_store(program: Any, folder: Path, is_direct: bool | None = None) -> Any:
    """Return the weight store of a Program, as the estimator opens it; None if it needs none.

    Args:
        program: The Program.
        folder: Of the store's files.
        is_direct: Whether a file store bypasses the page cache. None: if it is large, as the estimator's does.
    """
    from cerebras_tensorflow.graph.program import Residence
    from cerebras_tensorflow.runtime.host.heap import return_large_buffers
    from cerebras_tensorflow.runtime.weight_store.file import FileStore
    from cerebras_tensorflow.runtime.weight_store.mapped import MappedStore

    if not program.needs_store:
        return None
    if program.residence is Residence.MAPPED_FILE:
        return MappedStore(program.stored, folder)
    return_large_buffers()
    return FileStore(program.stored, folder, is_direct=is_direct, reads=program.bytes_read_of_each)


def file_bytes(store: Any) -> tuple[int, int]:
    """Return the bytes that a file store has read and written so far, without packed zeros; zeros for others."""
    return getattr(store, "file_bytes", (0, 0))


def peak_bytes() -> int:
    """Return the most memory that this process has had [B]."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def print_plan(model: Any, step: Any, program: Any, plan: Any, batch: int) -> None:
    """Print the memory plan and the estimate of the simulated system's speed."""
    from cerebras_tensorflow.compiler import report
    from cerebras_tensorflow.estimator.execution.compile_model import network_of
    from cerebras_tensorflow.system.wafer.simulate import Workload, simulate

    print(report.memory_plan_text(program, plan))
    network = network_of(model, [node.name for node in step.graph_def.node], step.train_node is not None)
    print(report.compile_report_text(simulate(network, Workload(program.mode, batch, allow_oversize=True))))


def timed_steps(session: Any, model: Any, store: Any, options: argparse.Namespace) -> dict[str, Any]:
    """Run the steps and return their times and losses."""
    times, losses, moved, cpu_s = [], [], [], []
    for _ in range(options.steps):
        before = file_bytes(store)
        if options.cold and store is not None:
            store.drop_cache()
        begin, cpu_before = time.perf_counter(), time.process_time()
        _, loss = session.run([model.spec.train_op, model.spec.loss])
        times.append(time.perf_counter() - begin)
        losses.append(float(loss))
        if store is not None:
            store.flush()
        cpu_s.append(round(time.process_time() - cpu_before, 1))
        moved.append([after - earlier for after, earlier in zip(file_bytes(store), before, strict=True)])
    return {
        "file_bytes_per_step": moved[-1],
        "cpu_s": cpu_s,
        "step_s": [round(value, 3) for value in times],
        "median_step_s": round(statistics.median(times[1:] or times), 3),
        "losses": losses,
    }


def main() -> None:
    """Run the benchmark and print one JSON object."""
    options = parser().parse_args()
    if options.no_packing:
        from cerebras_tensorflow.runtime.weight_store import blocks

        blocks.pack = lambda *_: None
    from cerebras_tensorflow.compiler.memory_plan import plan_memory
    from cerebras_tensorflow.compiler.step import compile_step
    from cerebras_tensorflow.estimator.training.ops import training_ops
    from cerebras_tensorflow.graph.cost import op_outputs
    from cerebras_tensorflow.runtime.host.memory import resident_bytes
    from cerebras_tensorflow.runtime.session import ProgramSession

    model, pipeline = build(options)
    step = training_ops(model).step
    outputs = op_outputs(model.graph)
    begin = time.perf_counter()
    program = compile_step(step, options.mode, streaming_options(options), outputs)
    plan = plan_memory(program)
    compile_s = time.perf_counter() - begin
    baseline = resident_bytes()
    result: dict[str, Any] = {
        "shape": vars(options), "compile_s": round(compile_s, 2), "weight_bytes": program.weight_bytes,
        "process_bytes": baseline, "planned_peak_bytes": baseline + plan.peak_bytes, "window_bytes": plan.window_bytes,
        "activation_bytes": plan.activation_bytes, "resident_bytes": plan.resident_bytes,
        "overhead_bytes": plan.overhead_bytes, "spilled_bytes": plan.spilled_bytes,
    }  # fmt: skip
    if options.plan:
        print_plan(model, step, program, plan, options.batch)
        print(json.dumps(result))
        return
    store = open_store(program, Path(options.store_dir), options.direct or None)
    pipeline.start()
    session = ProgramSession(program, model.graph, model.train_node, store, None, pipeline.next_batch)
    fill(session, model)
    if store is not None:
        store.flush()
    result["rss_after_fill"] = peak_bytes()
    result.update(timed_steps(session, model, store, options), peak_rss_bytes=peak_bytes())
    if store is not None:
        result.update(bytes_read=store.bytes_read, bytes_written=store.bytes_written)
    session.close()
    pipeline.close()
    print(json.dumps(result))


if __name__ == "__main__":
    main()
