"""A step on several CSX gives the bits of one CSX with the same micro-batches, in every mode and store.

The CSX are threads of this process, which exchange bytes as processes do over MPI.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from cerebras_tensorflow.compiler.step import compile_for_each_csx
from cerebras_tensorflow.estimator.execution.owned_parts import OwnedParts
from cerebras_tensorflow.graph.cost import op_outputs
from cerebras_tensorflow.graph.micro_batches import EVERY
from cerebras_tensorflow.graph.program import Residence
from cerebras_tensorflow.runtime.collectives import totals
from cerebras_tensorflow.runtime.collectives.in_process import make_group
from cerebras_tensorflow.runtime.collectives.interface import Collectives
from cerebras_tensorflow.runtime.csx.copy_shares import CopyShares, HeldCopies
from cerebras_tensorflow.runtime.csx.orders import FirstCsx
from cerebras_tensorflow.runtime.csx.peers import Answer, Peers
from cerebras_tensorflow.runtime.csx.shared_store import SharedStore
from cerebras_tensorflow.runtime.csx.variables import VariableSender
from cerebras_tensorflow.runtime.follower import follow
from cerebras_tensorflow.runtime.session import ProgramSession
from cerebras_tensorflow.runtime.session_snapshot import SessionSnapshot
from cerebras_tensorflow.runtime.weight_store.interface import WeightStore
from cerebras_tensorflow.runtime.weight_store.remote import ServerAddress
from reference_implementations.common.optimizers.make import training_step
from reference_implementations.common.sections import OptimizerSettings
from tests.numerics.micro_batches import Cut, Result, batches, build, different, options, store_of, tied_loss, train
from tests.numerics.test_micro_batches_are_exact import TRAINERS, adam
from tests.unit.runtime.weight_store.test_remote import weight_servers

v1 = tf.compat.v1
COUNT, WHOLE = 8, 24  # micro-batches and samples of a step


@pytest.fixture(autouse=True)
def large_sums_are_read_in_shared_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(totals, "_SHARED_FROM_BYTES", 1000)


def train_on(
    num_csx: int,
    cut: Cut,
    mode: str = "pipelined",
    steps: int = 3,
    folder: Path | None = None,
    data: Sequence[dict[str, np.ndarray]] | None = None,
    start: dict[str, np.ndarray] | None = None,
    between: Callable[[ProgramSession, int], None] = lambda session, step: None,
    later: Callable[[], dict[str, Any]] | None = None,
    shared: str | None = None,
    servers: Sequence[ServerAddress] = (),
    copies: Path | None = None,
) -> Result:
    """Train on several CSX; with a folder, each streams its weights from a file there.

    Args:
        num_csx: Number of CSX.
        cut: The graph.
        mode: Execution mode.
        steps: Number of steps.
        folder: Folder of the stores.
        data: Whole batches.
        start: Values to start from; by default the initial ones.
        between: Called before each step with the session of the first CSX.
        later: Makes more tensors after compiling, as a hook may.
        shared: The kind of store in which the CSX hold the weights once; None: each holds all of them.
        servers: The weight servers of this kind.
        copies: Folder of the connections through which the CSX share the copies for checkpoints; None: they do not.
    """
    step = replace(cut.step, num_csx=num_csx, is_shared=shared is not None)
    outputs, chosen = op_outputs(cut.graph), options(folder, shared == "mapped")
    if shared == "memory":
        chosen = replace(chosen, residence=Residence.MEMORY_STORE)
    programs = compile_for_each_csx(step, mode, chosen, outputs)
    program = programs[0]
    assert cut.step.train_node is not None
    source = iter(data or batches(steps, WHOLE))
    group = make_group(num_csx)
    stores: list[WeightStore | None] = [
        store_of(one, rank, folder, shared, servers) if one.needs_store and folder is not None else None
        for rank, one in enumerate(programs)
    ]
    errors: list[BaseException] = []

    def connect(ranks: Collectives, answer: Answer, *_: Any) -> Peers:
        assert copies is not None
        return Peers(ranks.rank, copies, b"secret", answer, ranks.check)

    def other(ranks: Collectives) -> None:
        files = OwnedParts()
        held = HeldCopies(ranks.rank, partial(connect, ranks), files) if copies is not None else None
        try:
            program = programs[ranks.rank]
            follow(ranks, program, str(cut.step.train_node), stores[ranks.rank], checkpoints=files, held=held)
        except BaseException as error:  # noqa: BLE001 - raised in the test's thread
            errors.append(error)
            ranks.abort(repr(error))
        finally:
            if held is not None:
                held.close()

    threads = [threading.Thread(target=other, args=(ranks,), name=f"rank {ranks.rank}") for ranks in group[1:]]
    for thread in threads:
        thread.start()
    shares = CopyShares(group[0], partial(connect, group[0])) if copies is not None else None
    first = FirstCsx(group[0], program, 1, stores[0] if isinstance(stores[0], SharedStore) else None, shares=shares)
    session = ProgramSession(program, cut.graph, cut.step.train_node, stores[0], None, lambda: next(source), first)
    with cut.graph.as_default():
        added = later() if later is not None else {}
    try:
        for name, value in (start or cut.values).items():
            session.load(name, value.copy())
        fetched = []
        for number in range(steps):
            between(session, number)
            fetched.append(session.run([{"loss": cut.loss, **cut.fetches, **added}, cut.train_op])[0])
        result = Result(program, fetched, {name: session.read(name).copy() for name in cut.values})
    finally:
        session.close()
        if shares is not None:
            shares.close()
        for thread in threads:
            thread.join()
    assert not errors
    return result


def assert_same_bits(cut: Cut, folder: Path, numbers: Sequence[int], data: Any = None, steps: int = 3) -> Result:
    """Train on one CSX and on several, in both modes; all agree in every bit. Return the result of one CSX."""
    data = data or batches(steps, WHOLE)
    expected = train(cut, steps=steps, data=data)
    for num_csx in numbers:
        for mode, store in (("pipelined", None), ("weight_streaming", None), ("weight_streaming", folder)):
            result = train_on(num_csx, cut, mode, steps, store, data)
            np.testing.assert_array_equal(result.losses, expected.losses)
            assert not different(result, expected), (num_csx, mode, store)
        shared = train_on(num_csx, cut, "weight_streaming", steps, folder, data, shared="memory")
        np.testing.assert_array_equal(shared.losses, expected.losses)
        assert not different(shared, expected), (num_csx, "shared")
    return expected


def cut_of(trainer: Callable[[Any, Any], Any], loss: Any = tied_loss, count: int = COUNT) -> Cut:
    return build(trainer, loss, count, WHOLE)


@pytest.mark.parametrize("is_write", [False, True])
def test_only_a_fetch_that_may_write_makes_the_first_csx_send_its_variables_again(
    is_write: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[str] = []
    add = VariableSender.add

    def recorded(self: VariableSender, name: str, value: np.ndarray) -> None:
        sent.append(name)
        add(self, name, value)

    def later() -> dict[str, Any]:  # as the read of the global step that every MonitoredSession fetches
        with tf.name_scope("later"):
            w = next(one for one in v1.global_variables() if one.op.name == "w")
            change = tf.zeros_like(w)
            return {"w": tf.cond(tf.constant(True), lambda: w.assign_add(change) if is_write else w + 0.0, lambda: w)}

    monkeypatch.setattr(VariableSender, "add", recorded)
    cut = cut_of(adam)
    train_on(2, cut, steps=3, later=later)
    assert sent.count("w") == (3 if is_write else 1)


@pytest.mark.parametrize("shared", ["memory", "file", "mapped", "servers"])
def test_weights_that_are_held_once_get_the_bits_of_one_csx(shared: str, tmp_path: Path) -> None:
    cut, data = cut_of(adam), batches(3, WHOLE)
    expected = train(cut, steps=3, data=data)
    for num_csx in (2, 3):
        with weight_servers(2 if shared == "servers" else 0) as servers:
            result = train_on(num_csx, cut, "weight_streaming", 3, tmp_path, data, shared=shared, servers=servers)
        assert result.losses == expected.losses
        assert not different(result, expected)
        owners = dict(zip((spec.name for spec in result.program.streamed), result.program.owners, strict=True))
        for name in ("embedding", "w"):
            assert owners[name] == owners[f"{name}/Adam"] == owners[f"{name}/Adam_1"], "a weight and its slots"
        assert owners["embedding"] != owners["w"]


def test_a_snapshot_has_the_weights_of_all_csx_at_one_step_while_training_goes_on(tmp_path: Path) -> None:
    cut, data = cut_of(adam), batches(3, WHOLE)
    names = ["embedding", "w", "w/Adam"]
    taken: list[SessionSnapshot] = []
    values: dict[str, bytes] = {}

    def snapshot(session: ProgramSession, step: int) -> None:
        if step == 1:
            taken.append(session.snapshot(names))
        if step == 2:
            for name, _, _, value in taken[0].take():
                parts = [value] if isinstance(value, np.ndarray) else value
                values[name] = b"".join(part.tobytes() for part in parts)
            taken[0].close()

    train_on(2, cut, "weight_streaming", 3, tmp_path, data, between=snapshot, shared="memory")
    expected = train(cut, steps=1, data=data).variables
    assert values == {name: expected[name].tobytes() for name in names}


def test_a_trace_of_a_step_has_all_micro_batches_and_the_wire(tmp_path: Path) -> None:
    cut = cut_of(adam)
    metadata = v1.RunMetadata()
    moves: set[str] = set()

    def trace(session: ProgramSession, step: int) -> None:
        if step == 1:
            assert session.store is not None
            session.store.on_move = lambda move: moves.add(move.kind)
            options = v1.RunOptions(trace_level=v1.RunOptions.FULL_TRACE)
            session.run(cut.train_op, options=options, run_metadata=metadata)

    train_on(2, cut, "weight_streaming", 2, tmp_path, batches(3, WHOLE), between=trace, shared="memory")
    ops = [node.node_name for device in metadata.step_stats.dev_stats for node in device.node_stats]
    sinks = [name for name in ops if name == "cs_total/0/sink"]
    assert len(sinks) == COUNT // 2, "the micro-batches of this CSX"
    assert any("Adam" in name for name in ops), "the update"
    assert {"receive", "exchange"} <= moves


def test_a_weight_that_another_variable_depends_on_stays_on_every_csx() -> None:
    norms: list[Any] = []

    def loss(ids: Any, targets: Any) -> Any:
        norms.append(v1.get_variable("norm", [], initializer=v1.zeros_initializer(), trainable=False))
        return tied_loss(ids, targets)

    def with_norm(value: Any, step: Any) -> Any:
        w = next(one for one in v1.trainable_variables() if one.op.name == "w")
        return tf.group(adam(value, step), norms[0].assign(tf.nn.l2_loss(w)))

    cut = cut_of(with_norm, loss)
    step = replace(cut.step, num_csx=2, is_shared=True)
    program = compile_for_each_csx(step, "weight_streaming", options(Path("unused"), False), op_outputs(cut.graph))[0]
    owners = dict(zip((spec.name for spec in program.streamed), program.owners, strict=True))
    assert owners["w"] == owners["w/Adam"] == EVERY
    assert owners["embedding"] == owners["embedding/Adam"] != EVERY


def chained(value: Any, step: Any) -> Any:
    """A copy of the embedding, read after Adam's updates of all weights. Nothing else waits for these updates."""
    trained = v1.trainable_variables()
    gradients = [tf.convert_to_tensor(one) for one in tf.gradients(value, trained)]
    updated = v1.train.AdamOptimizer(1e-2).apply_gradients(zip(gradients, trained, strict=True))
    embedding = next(one for one in trained if one.op.name == "embedding")
    with tf.control_dependencies([updated]):
        after = embedding.read_value()
    average = v1.get_variable("average", embedding.shape, initializer=v1.zeros_initializer(), trainable=False)
    return tf.group(average.assign(0.9 * average + 0.1 * after), step.assign_add(1))


def checked(value: Any, step: Any) -> Any:
    """Adam, and assertions on each weight after it."""
    updated = adam(value, step)
    with tf.control_dependencies([updated]):
        norms = [tf.nn.l2_loss(one.read_value()) for one in v1.trainable_variables()]
    return tf.group(updated, *(tf.debugging.assert_less(norm, 1e6) for norm in norms))


def scheduled(value: Any, step: Any) -> Any:
    """Descent with a learning rate and a decay from two large tables."""
    rates, decays = (v1.get_variable(name, [100, 8], trainable=False) for name in ("rates", "decays"))
    rate, decay = tf.gather(rates, step)[0], tf.gather(decays, step)[0]
    trained = v1.trainable_variables()
    gradients = [tf.convert_to_tensor(one) for one in tf.gradients(value, trained)]
    updates = [w.assign_sub(rate * (g + decay * w)) for w, g in zip(trained, gradients, strict=True)]
    return tf.group(step.assign_add(1), *updates)


def masked(value: Any, step: Any) -> Any:
    """Descent in which every update takes a large table that does not change."""
    table = v1.get_variable("rates", [50, 16], initializer=v1.random_normal_initializer(), trainable=False)
    trained = v1.trainable_variables()
    gradients = [tf.convert_to_tensor(one) for one in tf.gradients(value, trained)]
    pairs = zip(trained, gradients, strict=True)
    updates = [w.assign_sub(0.1 * g * tf.reshape(tf.reshape(table, [-1])[: w.shape.num_elements()], w.shape))
               for w, g in pairs]  # fmt: skip
    return tf.group(step.assign_add(1), *updates)


def looped(value: Any, step: Any) -> Any:
    """Adam, a loop that writes a variable, and a function that reads it."""
    total = v1.get_variable("total", [50, 16], initializer=v1.zeros_initializer(), trainable=False)
    seen = v1.get_variable("seen", [], initializer=v1.zeros_initializer(), trainable=False)
    w = next(one for one in v1.trainable_variables() if one.op.name == "w")

    def body(number: Any) -> Any:
        with tf.control_dependencies([total.assign_add(tf.fill(total.shape, tf.reduce_mean(w)))]):
            return number + 1

    loop = tf.while_loop(lambda number: number < 3, body, [0])
    mean = tf.function(lambda: tf.reduce_mean(total), autograph=False)()
    return tf.group(adam(value, step), loop, seen.assign(mean))


@pytest.mark.parametrize(
    ("trainer", "everywhere"),
    [
        (looped, set()),
        (masked, {"rates"}),
        (chained, set()),
        (checked, {"embedding", "w"}),
        (scheduled, {"rates", "decays"}),
    ],
)
def test_an_update_beside_those_of_other_owners_gets_the_bits_of_one_csx(
    trainer: Callable[[Any, Any], Any], everywhere: set[str], tmp_path: Path
) -> None:
    cut, data = cut_of(trainer), batches(3, WHOLE)
    step = replace(cut.step, num_csx=2, is_shared=True)
    program = compile_for_each_csx(step, "weight_streaming", options(tmp_path, False), op_outputs(cut.graph))[0]
    owners = zip((spec.name for spec in program.streamed), program.owners, strict=True)
    names = {"embedding", "w", "rates", "decays"}
    assert {name for name, owner in owners if owner == EVERY} & names == everywhere, "else the CSX wait for each other"
    result = train_on(2, cut, "weight_streaming", 3, tmp_path, data, shared="memory")
    assert not different(result, train(cut, steps=3, data=data))


SLOW = [pytest.param(name, marks=pytest.mark.slow) for name in sorted(set(TRAINERS) - {"adamw"})]


@pytest.mark.parametrize("name", ["adamw", *SLOW])
def test_two_and_three_csx_give_the_bits_of_one(name: str, tmp_path: Path) -> None:
    assert_same_bits(cut_of(TRAINERS[name]), tmp_path, [2, 3])


@pytest.mark.slow
@pytest.mark.parametrize("num_csx", [4, 8])
def test_four_and_eight_csx_give_the_bits_of_one(num_csx: int, tmp_path: Path) -> None:
    assert_same_bits(cut_of(adam), tmp_path, [num_csx])


def test_bfloat16_sums_give_the_bits_of_one_csx(tmp_path: Path) -> None:
    assert_same_bits(cut_of(adam, partial(tied_loss, dtype=tf.bfloat16)), tmp_path, [2], steps=2)


def test_an_overflow_in_one_micro_batch_of_one_csx_skips_the_update_on_all(tmp_path: Path) -> None:
    settings = OptimizerSettings(optimizer_type="adam", learning_rate=1e-2, loss_scaling_factor="dynamic")

    def loss(ids: Any, targets: Any) -> Any:
        scale = tf.where(tf.reduce_any(tf.equal(ids, 49)), 1e30, 1.0)
        return tied_loss(ids, targets) * scale * scale

    data = batches(3, WHOLE)
    data[1]["cs_input/0:0"][WHOLE - 1, 2] = 49  # in the last micro-batch, which another CSX computes
    result = assert_same_bits(cut_of(lambda value, _: training_step(value, settings), loss), tmp_path, [2], data)
    assert not np.isfinite(result.losses[1]) and np.isfinite(result.losses[2])


def test_a_run_continues_on_another_number_of_csx_with_the_same_bits() -> None:
    cut, data = cut_of(TRAINERS["adamw"]), batches(4, WHOLE)
    expected = train(cut, steps=4, data=data)
    half = train_on(2, cut, steps=2, data=data[:2])
    rest = train_on(3, cut, steps=2, data=data[2:], start=half.variables)
    assert not different(rest, expected)


def test_variables_that_are_set_between_steps_reach_all_csx() -> None:
    cut, data = cut_of(adam), batches(3, WHOLE)

    def by_load(session: ProgramSession, step: int) -> None:
        if step == 1:
            session.load("w", np.ones_like(cut.values["w"]))

    def by_op(session: ProgramSession, step: int) -> None:
        if step == 1:
            session.run(assign)

    with cut.graph.as_default():
        w = next(one for one in v1.trainable_variables() if one.op.name == "w")
        assign = w.assign(tf.ones_like(w)).op
    results = [train_on(number, cut, data=data, between=by) for number in (1, 2) for by in (by_load, by_op)]
    for result in results[1:]:
        assert not different(result, results[0])


def test_tensors_that_hooks_make_are_means_over_the_micro_batches_of_all_csx() -> None:
    def later() -> dict[str, Any]:
        graph = v1.get_default_graph()
        ids = graph.get_tensor_by_name("cs_input/0:0")
        mean = tf.reduce_mean(tf.cast(ids, tf.float32))
        return {"mean": mean, "ids": ids, "summary": v1.summary.scalar("mean", mean)}

    data = batches(2, WHOLE)
    result = train_on(2, cut_of(adam), steps=2, data=data, later=later)
    for batch, fetched in zip(data, result.fetched, strict=True):
        ids = batch["cs_input/0:0"]
        assert fetched["mean"] == pytest.approx(ids.mean())
        assert np.array_equal(fetched["ids"], ids[: WHOLE // COUNT]), "the first micro-batch"
        assert v1.Summary.FromString(fetched["summary"]).value[0].simple_value == pytest.approx(ids.mean())


@pytest.mark.parametrize("kind", ["whole", "slice", "slice in a function"])
def test_moving_averages_take_the_mean_of_all_csx(kind: str, tmp_path: Path) -> None:
    def loss(ids: Any, targets: Any) -> Any:
        average = v1.get_variable("average", [4], initializer=v1.zeros_initializer(), trainable=False)
        new = average - 0.25 * (average - tf.reduce_mean(tf.cast(ids, tf.float32), 0))
        if kind == "whole":
            update = average.assign(new)
        elif kind == "slice":
            update = average[:].assign(new)  # another op: ResourceStridedSliceAssign
        else:
            update = tf.function(lambda value: average[:].assign(value), autograph=False)(new)
        v1.add_to_collection(v1.GraphKeys.UPDATE_OPS, update)
        return tied_loss(ids, targets)

    def with_updates(value: Any, step: Any) -> Any:
        with tf.control_dependencies(v1.get_collection(v1.GraphKeys.UPDATE_OPS)):
            return adam(value, step)

    data = batches(1, WHOLE)
    result = assert_same_bits(cut_of(with_updates, loss), tmp_path, [2], data, steps=1)
    np.testing.assert_allclose(result.variables["average"], 0.25 * data[0]["cs_input/0:0"].mean(0), rtol=1e-6)
