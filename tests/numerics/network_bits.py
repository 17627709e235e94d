"""Compares the training of generated networks in a plain session and in both modes, with every kind of store.

`python -m tests.numerics.network_bits COUNT SEED LOG` compares the networks of the seeds SEED, SEED + 1 and so on, and
appends one line to LOG for each. It goes on after a difference, and exits with 1 at the end.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import tensorflow as tf

from cerebras_tensorflow.graph.accesses.ordering import reads_before_writes
from cerebras_tensorflow.graph.cost import op_outputs
from cerebras_tensorflow.graph.program import WeightSpec
from cerebras_tensorflow.graph.scatters import add_rows_in_order
from cerebras_tensorflow.graph.separate_ops import keep_separate
from cerebras_tensorflow.graph.sums import fix_order_of_sums
from cerebras_tensorflow.runtime.weight_store.file import FileStore
from cerebras_tensorflow.runtime.weight_store.interface import WeightStore
from cerebras_tensorflow.runtime.weight_store.mapped import MappedStore
from cerebras_tensorflow.runtime.weight_store.remote import ServerStore
from tests.numerics.networks import Network, build_network, draw_network
from tests.numerics.streaming import Built, batches, opened
from tests.unit.runtime.weight_store.test_remote import weight_servers

v1 = tf.compat.v1
STEPS = 3
MakeStore = Callable[[Sequence[WeightSpec]], WeightStore]
Stores = dict[str, MakeStore | None]
Outcome = tuple[list[bytes], dict[str, bytes]]
# A store takes every value that can be spilled or computed again; a mapped file and host memory take none.
STREAMED = ("memory", "mapped", "file", "servers")


@contextmanager
def all_stores(folder: Path) -> Iterator[Stores]:
    """A factory for each kind of store. The servers run until the end of the block."""
    with weight_servers(2) as addresses:
        yield {
            "memory": None,
            "mapped": lambda specs: MappedStore(specs, folder),
            "file": lambda specs: FileStore(specs, folder),
            "servers": lambda specs: ServerStore(specs, addresses),
        }


def plain(built: Built) -> Outcome:
    """Train in a session of TensorFlow, with the sums, separate ops and order of both modes, one op at a time."""
    graph_def, _ = fix_order_of_sums(built.step.graph_def)
    graph_def, _ = keep_separate(add_rows_in_order(graph_def, op_outputs(built.graph)), {})
    # Otherwise timing decides whether an op sees a variable before or after one of the UPDATE_OPS.
    graph_def = reads_before_writes(graph_def, str(built.step.train_node), built.step.sources)
    config = v1.ConfigProto(inter_op_parallelism_threads=1, use_per_session_threads=True)
    config.graph_options.rewrite_options.disable_meta_optimizer = True
    with tf.Graph().as_default() as graph:
        tf.graph_util.import_graph_def(graph_def, name="")
        handles = {name: graph.get_tensor_by_name(f"{name}:0") for name in built.values}
        set_all = [
            tf.raw_ops.AssignVariableOp(resource=handles[name], value=value) for name, value in built.values.items()
        ]
        read_all = {
            name: tf.raw_ops.ReadVariableOp(resource=handles[name], dtype=value.dtype)
            for name, value in built.values.items()
        }
        with v1.Session(graph=graph, config=config) as session:
            session.run(set_all)
            fetches = [built.train_op.name, built.loss.name]
            losses = [session.run(fetches, batch)[1].tobytes() for batch in batches(STEPS)]
            return losses, {name: value.tobytes() for name, value in session.run(read_all).items()}


def ours(
    built: Built, mode: str, make_store: MakeStore | None = None, is_mapped: bool = False, **options: int
) -> Outcome:
    """Train in one of our modes, with several ops at a time."""
    with opened(built, mode, STEPS, make_store, is_mapped=is_mapped, threads=6, **options) as session:
        losses = [session.run([built.train_op, built.loss])[1].tobytes() for _ in range(STEPS)]
        return losses, {name: session.read(name).tobytes() for name in built.values}


def assert_same(kind: str, outcome: Outcome, expected: Outcome) -> None:
    different = [name for name, value in expected[1].items() if outcome[1][name] != value]
    assert (outcome[0], different) == (expected[0], []), kind


def check(network: Network, stores: Stores, kinds: Sequence[str]) -> None:
    """Compare every bit of a network's training in a plain session, pipelined, and streamed from some stores."""
    built = build_network(network)
    expected = ours(built, "pipelined")
    if not network.draws_numbers:
        assert_same("plain", plain(built), expected)
    for kind in kinds:
        outcome = ours(
            *(built, "weight_streaming", stores[kind], kind == "mapped"),
            min_stream_bytes=network.min_stream_bytes,
            window_bytes=network.window_bytes,
        )
        assert_same(kind, outcome, expected)


def compare(count: int, first: int, log: Path) -> int:
    """Compare the networks of some seeds in every store, with a line in a log for each; return how many differ."""
    differ = 0
    with tempfile.TemporaryDirectory() as folder, all_stores(Path(folder)) as stores:
        for seed in range(first, first + count):
            begin, end, network = time.monotonic(), "same", draw_network(seed)
            try:
                check(network, stores, STREAMED)
            except Exception as error:  # noqa: BLE001 - a difference or a crash; the next network may have none
                differ, end = differ + 1, repr(error)[:500]
            with log.open("a") as file:
                file.write(f"{seed} {time.monotonic() - begin:.1f} s {end} {network}\n")
    return differ


if __name__ == "__main__":
    how_many, first_seed, log_file = sys.argv[1:]
    sys.exit(compare(int(how_many), int(first_seed), Path(log_file)) > 0)
