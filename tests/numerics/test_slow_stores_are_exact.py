"""Training gives the same bits however long each move of a weight takes, and a snapshot keeps the bits of its step.

Calls into a store and its background writes wait for random times. This produces orders of moves that a fast disk never
shows.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cerebras_tensorflow.graph.program import WeightSpec
from cerebras_tensorflow.runtime.weight_store.file import FileStore
from cerebras_tensorflow.runtime.weight_store.interface import WeightStore
from cerebras_tensorflow.runtime.weight_store.mapped import MappedStore
from cerebras_tensorflow.runtime.weight_store.remote import ServerStore
from cerebras_tensorflow.runtime.weight_store.snapshot import StoreSnapshot
from tests.numerics.streaming import Built, build, opened
from tests.numerics.test_weight_streaming_is_exact import accumulated, adam, clipped, decoupled_decay
from tests.unit.runtime.weight_store.test_remote import weight_servers

STEPS = 6
SNAPSHOTS_AFTER = (1, 3)
CALLS = ("read", "read_unchecked", "read_private", "read_rows", "read_slice", "lend", "write", "write_slice")
LONGEST_S = 0.004
THREADS = 48  # as on a large machine: all moves that may run start at once

Weights = dict[str, np.ndarray]


def slow(store: WeightStore) -> WeightStore:
    """Delay some of the calls into a store and all of its background writes."""
    numbers = random.Random(3)

    def waiting(call: Callable[..., Any], share: float) -> Callable[..., Any]:
        def waits(*arguments: Any) -> Any:
            if numbers.random() < share:
                time.sleep(LONGEST_S * numbers.random())
            return call(*arguments)

        return waits

    for name in CALLS:
        setattr(store, name, waiting(getattr(store, name), 0.2))
    if isinstance(store, (FileStore, ServerStore)):
        for name in ("_drain", "_write"):
            setattr(store._writes, name, waiting(getattr(store._writes, name), 1))
    return store


@contextmanager
def stores(kind: str, folder: Path) -> Iterator[Callable[[Sequence[WeightSpec]], WeightStore]]:
    """Yield a factory of slow stores."""
    with ExitStack() as stack:
        if kind == "servers":
            addresses = stack.enter_context(weight_servers(2))
            yield lambda specs: slow(ServerStore(specs, addresses))
        else:
            yield lambda specs: slow((MappedStore if kind == "mapped" else FileStore)(specs, folder))


def kept(snapshot: StoreSnapshot, specs: Sequence[WeightSpec]) -> dict[str, bytes]:
    """Read a snapshot, slowly, and close it."""
    contents = {}
    for index, spec in enumerate(specs):
        pieces = []
        for piece in snapshot.pieces(index):
            time.sleep(LONGEST_S)
            pieces.append(piece.tobytes())
        contents[spec.name] = b"".join(pieces)
        snapshot.release(index)
    snapshot.close()
    return contents


def pipelined_weights(built: Built) -> list[Weights]:
    """All variables after each step."""
    with opened(built, "pipelined", STEPS) as session:
        weights = []
        for _ in range(STEPS):
            session.run(built.train_op)
            weights.append({name: session.read(name).copy() for name in built.values})
        return weights


@pytest.mark.parametrize(
    ("optimizer", "window_bytes"),
    [
        pytest.param(adam, 10_000_000, id="adam"),
        pytest.param(accumulated, 131_072, id="accumulated", marks=pytest.mark.slow),
        pytest.param(clipped, 20_000, id="clipped", marks=pytest.mark.slow),
        pytest.param(decoupled_decay, 131_072, id="decoupled_decay", marks=pytest.mark.slow),
    ],
)
def test_training_and_snapshots_agree_in_every_bit(
    optimizer: Callable[[Any, Any], Any], window_bytes: int, tmp_path: Path
) -> None:
    built = build(optimizer)
    expected = pipelined_weights(built)
    for kind in ("servers", "file", "mapped"):
        snapshots: dict[int, Future[dict[str, bytes]]] = {}
        with (
            stores(kind, tmp_path) as make_store,
            ThreadPoolExecutor(1) as writer,
            opened(built, "weight_streaming", STEPS, make_store, window_bytes, kind == "mapped", THREADS) as session,
        ):
            specs = session.program.streamed
            for step in range(STEPS):
                session.run(built.train_op)
                if step in SNAPSHOTS_AFTER:
                    for before in snapshots.values():
                        before.result()
                    assert session.store is not None
                    snapshots[step] = writer.submit(kept, session.store.snapshot(), specs)
            for name, value in expected[-1].items():
                assert session.read(name).tobytes() == value.tobytes(), (kind, name)
            for step, snapshot in snapshots.items():
                for name, content in snapshot.result().items():
                    assert content == expected[step][name].tobytes(), (kind, step, name)
