"""A snapshot of the weights of several CSX."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest

from cerebras_tensorflow.errors import StoreError
from cerebras_tensorflow.graph.micro_batches import Gradient, Mark
from cerebras_tensorflow.graph.program import WeightSpec
from cerebras_tensorflow.runtime.csx import shared_store
from cerebras_tensorflow.runtime.csx.peers import Peers
from cerebras_tensorflow.runtime.csx.shared_store import SharedStore
from cerebras_tensorflow.runtime.weight_store.memory import MemoryStore
from cerebras_tensorflow.runtime.weight_store.snapshot import StoreSnapshot
from tests.unit.runtime.test_csx_sums import programs_of

NUM_CSX = 3
SPECS = [WeightSpec(f"w{number}", "float32", (2,), 8) for number in range(NUM_CSX)]


@pytest.fixture
def locals_() -> list[MemoryStore]:
    """The own store of each CSX, which has one weight."""
    return [MemoryStore([spec], is_shared=True) for spec in SPECS]


@pytest.fixture
def shared(tmp_path: Path, locals_: list[MemoryStore]) -> Iterator[list[SharedStore]]:
    """The stores of three CSX. Each owns a weight, which is its number."""
    gradients = [Gradient(Mark(f"w{n}", f"g{n}"), f"s{n}", "float32", (), owner=n) for n in range(NUM_CSX)]
    programs = programs_of(gradients, SPECS, [*range(NUM_CSX)], NUM_CSX, NUM_CSX)
    with ExitStack() as cleanup:
        stores = []
        for rank, program in enumerate(programs):
            stores.append(
                SharedStore(
                    program, rank, locals_[rank],
                    lambda answer, counted, memory, rank=rank: Peers(
                        rank, tmp_path, b"secret", answer, counted=(*counted,), memory=memory
                    ),
                )
            )  # fmt: skip
            cleanup.callback(stores[-1].close)
            stores[-1].write(rank, np.full(2, rank, np.float32))
        yield stores


def test_a_csx_without_room_for_a_snapshot_refuses_it_for_all(
    shared: list[SharedStore], locals_: list[MemoryStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full() -> StoreSnapshot:
        raise StoreError("a snapshot of the weights takes 5 GB, and the disk has 1 GB free")

    with monkeypatch.context() as patch:
        patch.setattr(locals_[2], "snapshot", full)
        with pytest.raises(StoreError, match=r"^rank 2: a snapshot of the weights takes 5 GB"):
            shared[0].snapshot()
    for local in locals_:  # none of them holds its weights any more
        local.snapshot().close()
    snapshot = shared[0].snapshot()
    kept = [next(snapshot.pieces(index)).view(np.float32).tolist() for index in range(NUM_CSX)]
    assert kept == [[0, 0], [1, 1], [2, 2]]
    snapshot.close()
    shared[0].wait_for_snapshot()


def test_the_copies_of_a_snapshot_are_counted_by_host(
    shared: list[SharedStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert shared[0].snapshot_bytes == 24
    names = iter(["here", "there", "here"])
    monkeypatch.setattr(shared_store, "host_name", lambda: next(names))
    assert shared[0].snapshot_bytes == 16
