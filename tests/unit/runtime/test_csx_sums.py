"""Sums of gradients that go to the CSX that adds them: the bits of the tree, in any order and at any speed."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from cerebras_tensorflow.compiler.micro_batches.sums import partial_sums, share_sums
from cerebras_tensorflow.errors import CollectiveError, StoreError
from cerebras_tensorflow.graph.micro_batches import EVERY, Gradient, Mark, MicroBatches, sum_dtype
from cerebras_tensorflow.graph.nodes import GraphDef
from cerebras_tensorflow.graph.program import Program, WeightSpec, dtype_from_name
from cerebras_tensorflow.runtime.collectives.in_process import make_group
from cerebras_tensorflow.runtime.collectives.interface import Collectives
from cerebras_tensorflow.runtime.csx import arrivals as arrivals_module
from cerebras_tensorflow.runtime.csx import sum_stream
from cerebras_tensorflow.runtime.csx.arrivals import Arrivals
from cerebras_tensorflow.runtime.csx.peers import Peers
from cerebras_tensorflow.runtime.csx.shared_store import SharedStore
from cerebras_tensorflow.runtime.csx.wire import plan_wire
from cerebras_tensorflow.runtime.host import links
from cerebras_tensorflow.runtime.micro_batches import sums
from cerebras_tensorflow.runtime.micro_batches.share import Share
from cerebras_tensorflow.runtime.micro_batches.streamed import StreamedSum
from cerebras_tensorflow.runtime.weight_store.buffers import Buffers
from cerebras_tensorflow.runtime.weight_store.memory import MemoryStore
from cerebras_tensorflow.runtime.weight_store.shared_memory import Window
from tests.unit.runtime.micro_batches.test_sums import tree_sum

STEPS = 3


@dataclass(frozen=True)
class Case:
    """Gradients of several CSX.

    Attributes:
        count: Micro-batches of a step.
        programs: The Program of each CSX.
        seed: Seed of values, orders and pauses.
    """

    count: int
    programs: list[Program]
    seed: int

    @classmethod
    def of(cls, seed: int) -> Case:
        """Return a random case."""
        choose = random.Random(seed)
        num_csx = choose.choice([2, 2, 3, 4, 5, 8])
        count = choose.randint(num_csx, 3 * num_csx)
        gradients, totals, owners = [], [], []
        for number in range(choose.randint(1, 5)):
            dtype = choose.choice(["float32", "float32", "bfloat16", "float64"])
            shape = choose.choice([(7,), (40, 3), (5, 2, 2), (1, 33), (64, 2)])
            size = int(np.prod(shape)) * dtype_from_name(dtype).itemsize
            totals.append(WeightSpec(f"total{number}", dtype, shape, size))
            owners.append(choose.choice([EVERY, *range(num_csx)]))
            gradients.append(Gradient(Mark(f"w{number}", f"g{number}"), f"s{number}", dtype, (), owner=owners[-1]))
        return cls(count, programs_of(gradients, totals, owners, num_csx, count), seed)

    def value(self, step: int, number: int, micro_batch: int) -> np.ndarray:
        """Return the gradient of a micro-batch."""
        spec = self.programs[0].streamed[number]
        values = np.random.default_rng((self.seed, step, number, micro_batch)).normal(size=spec.shape)
        return (values * 10.0 ** (micro_batch % 5)).astype(dtype_from_name(spec.dtype))

    def total(self, step: int, number: int) -> bytes:
        """Return the documented mean."""
        dtype = dtype_from_name(self.programs[0].streamed[number].dtype)
        wide = dtype_from_name(sum_dtype(dtype.name))
        total = tree_sum([self.value(step, number, one).astype(wide) for one in range(self.count)])
        return bytes((total / wide.type(self.count)).astype(dtype).tobytes())


def programs_of(
    gradients: list[Gradient], totals: list[WeightSpec], owners: list[int], num_csx: int, count: int
) -> list[Program]:
    """Return the Program of each CSX; only what sums need."""
    numbers = dict(enumerate(owners))
    sizes = {number: spec.num_bytes for number, spec in enumerate(totals)}
    programs = []
    for shared in share_sums(gradients, numbers, sizes, num_csx, count):
        stored = {number: number for number in numbers}
        placed, scratch = partial_sums(gradients, stored, totals, shared.levels, len(totals))
        plan = MicroBatches(count, tuple(shared.placed(*one) for one in enumerate(placed)), (), 0, num_csx)
        programs.append(
            Program("weight_streaming", GraphDef(), None, tuple(totals), (), spilled=scratch, micro_batches=plan,
                    owners=tuple(owners))
        )  # fmt: skip
    return programs


def run(
    case: Case,
    folder: Path,
    stores: list[MemoryStore],
    pause: Callable[[random.Random], None],
    is_near: bool = True,
) -> list[str]:
    """Let all CSX, as threads, add the gradients of some steps; return their errors."""
    num_csx = len(case.programs)
    errors: list[str] = []
    barrier = threading.Barrier(num_csx)

    def csx(ranks: Collectives) -> None:
        rank, program = ranks.rank, case.programs[ranks.rank]
        choose = random.Random(case.seed * 100 + rank)
        shared = SharedStore(
            program, rank, stores[rank],
            lambda answer, counted, memory: Peers(
                rank, folder, b"secret", answer, ranks.check, tuple(counted), memory if is_near else None
            ),
        )  # fmt: skip
        try:
            barrier.wait(30)
            follow(case, shared, program, rank, choose, pause)
            sent, received = shared.wire_bytes
            planned = plan_wire(program, rank)
            assert (sent, received) == (STEPS * planned.sent, STEPS * planned.received), "the plan of the wire"
            barrier.wait(30)
        except BaseException as error:  # noqa: BLE001 - compared in the test's thread
            errors.append(f"{type(error).__name__}: {error}")
            ranks.abort(str(error))
        finally:
            shared.close()

    threads = [threading.Thread(target=csx, args=(ranks,), daemon=True) for ranks in make_group(num_csx)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads), f"case {case.seed}: the CSX wait for each other"
    return errors


def follow(
    case: Case,
    shared: SharedStore,
    program: Program,
    rank: int,
    choose: random.Random,
    pause: Callable[[random.Random], None],
) -> None:
    """Add the gradients of this CSX's micro-batches, and compare the totals that its update takes."""
    plan = program.micro_batches
    assert plan is not None
    share = Share.of(plan, rank)
    streamed = [StreamedSum(one, shared, shared.sums, share) for one in plan.gradients]
    for step in range(STEPS):
        for number, taken in enumerate(share.absorbed):
            for index in choose.sample(range(len(streamed)), len(streamed)):  # TensorFlow promises no order
                pause(choose)
                streamed[index].add([case.value(step, index, share.first + number)], taken, None)
        shared.sums.finish()
        shared.update_begins()
        for index, one in enumerate(plan.gradients):
            if one.owner in (rank, EVERY):
                assert shared.read(index).tobytes() == case.total(step, index), (case.seed, rank, step, index)
            streamed[index].take_total()
        pause(choose)
        shared.update_ended()


def test_sums_have_the_bits_of_the_tree_in_any_order_and_at_any_speed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sums, "_PIECE_BYTES", 64)
    for seed in range(12):
        monkeypatch.setattr(sum_stream, "MAX_QUEUED_BYTES", (100, 10_000)[seed % 2])
        case = Case.of(seed)
        stores = [MemoryStore(program.stored_by(rank), is_shared=True) for rank, program in enumerate(case.programs)]
        folder = tmp_path / str(seed)
        folder.mkdir()
        assert run(case, folder, stores, lambda choose: time.sleep(choose.choice([0, 0, 0.001])), seed % 4 > 0) == []


def test_csx_of_which_one_cannot_read_the_memory_of_another_send_their_sums(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    totals = [WeightSpec(f"total{number}", "float32", (40, 3), 480) for number in range(4)]
    owners = [0, 1, EVERY, EVERY]
    gradients = [Gradient(Mark(f"w{n}", f"g{n}"), f"s{n}", "float32", (), owner=owners[n]) for n in range(4)]
    case = Case(6, programs_of(gradients, totals, owners, 2, 6), 0)
    stores = [MemoryStore(program.stored_by(rank), is_shared=True) for rank, program in enumerate(case.programs)]
    real = Peers.window
    blind = {(0, 1)}  # rank 0 cannot read rank 1, which can read rank 0
    opened: set[tuple[int, int]] = set()

    def window(self: Peers, rank: int) -> Window | None:
        opened.add((self.rank, rank))
        return None if (self.rank, rank) in blind else real(self, rank)

    monkeypatch.setattr(Peers, "window", window)
    assert run(case, tmp_path, stores, lambda choose: None) == []
    assert opened >= {(0, 1), (1, 0)}


@pytest.mark.parametrize("broken", [0, 1])
def test_an_error_of_one_store_ends_the_waits_of_all(
    broken: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(links, "CHECK_S", 0.05)
    monkeypatch.setattr(arrivals_module, "CHECK_S", 0.05)
    totals = [WeightSpec(f"total{number}", "float32", (40, 3), 480) for number in range(4)]
    gradients = [Gradient(Mark(f"w{n}", f"g{n}"), f"s{n}", "float32", (), owner=n % 2) for n in range(4)]
    case = Case(6, programs_of(gradients, totals, [0, 1, 0, 1], 2, 6), 0)
    stores = [MemoryStore(program.stored_by(rank), is_shared=True) for rank, program in enumerate(case.programs)]

    def full(index: int, start: int, value: np.ndarray) -> None:
        raise StoreError(f"no room for {value.nbytes} B of {stores[broken].specs[index].name} from row {start}")

    monkeypatch.setattr(stores[broken], "write_slice", full)
    errors = run(case, tmp_path, stores, lambda choose: None)
    assert len(errors) == 2
    assert errors[0].startswith("StoreError: no room for 480 B of total") or "rank" in errors[0]


@pytest.mark.parametrize("in_place", [False, True])
def test_additions_of_a_part_take_one_buffer(in_place: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    totals = [WeightSpec("total", "float32", (2,), 8)]
    gradients = [Gradient(Mark("w", "g"), "s", "float32", (), owner=0)]
    program = programs_of(gradients, totals, [0], 8, 8)[0]
    assert program.micro_batches is not None
    store = MemoryStore(program.stored)
    arrivals = Arrivals(program.micro_batches, 0, store, lambda *_: None, lambda: None, in_place)
    taken: list[int] = []
    real = Buffers.take
    monkeypatch.setattr(Buffers, "take", lambda self, size: taken.append(size) or real(self, size))  # type: ignore[func-returns-value]
    for group in range(8):
        value = np.full(2, group, np.float32)
        value.flags.writeable = False
        arrivals.add(0, group, 0, value, False)
    # Groups 1, 3, 5 and 7 add 1, 2, 1 and 3 times; the last addition of a group may be in the store's memory.
    assert len(taken) == (2 if in_place else 4)
    assert store.read(0).tolist() == [3.5, 3.5]


def test_a_part_that_this_csx_does_not_add_or_has_already_is_refused() -> None:
    totals = [WeightSpec("total", "float32", (2,), 8)]
    gradients = [Gradient(Mark("w", "g"), "s", "float32", (), owner=0)]
    program = programs_of(gradients, totals, [0], 2, 2)[0]
    store = MemoryStore(program.stored)
    assert program.micro_batches is not None
    arrivals = Arrivals(program.micro_batches, 0, store, lambda *_: None, lambda: None)
    ones = np.ones(2, np.float32)
    arrivals.add(0, 0, 0, ones.copy(), True)
    for group, start in ((0, 0), (2, 0), (1, 5)):
        with pytest.raises(CollectiveError, match=f"group {group} of rows {start}"):
            arrivals.add(0, group, start, ones.copy(), True)
    with pytest.raises(CollectiveError, match="takes no total of weight 0"):
        arrivals.set_total(0, 0, ones.view(np.uint8))
    arrivals.add(0, 1, 0, 3 * ones, True)
    arrivals.finish()
    np.testing.assert_array_equal(store.read(0), 2 * ones)
    arrivals.close()
    with pytest.raises(CollectiveError, match="has ended"):
        arrivals.add(0, 1, 0, ones.copy(), True)
