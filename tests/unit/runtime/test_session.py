"""A session of a Program behaves like a session on the graph that model_fn built."""

from __future__ import annotations

from collections import OrderedDict, namedtuple
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from cerebras_tensorflow.errors import CompileError
from cerebras_tensorflow.runtime.session import ProgramSession
from tests.unit.compiler.small_graphs import Small, build, compile_small, open_small, sgd, weight

Pair = namedtuple("Pair", "first second")


@pytest.fixture(scope="module")
def small() -> Small:
    def model(x: Any, step: Any) -> tuple[Any, Any]:
        loss = tf.reduce_mean(tf.square(tf.matmul(x, weight())))
        return loss, sgd(loss, step)

    return build(model)


@pytest.fixture(params=["pipelined", "weight_streaming"])
def session(request: pytest.FixtureRequest, small: Small, tmp_path: Path) -> Iterator[ProgramSession]:
    with closing(open_small(small, compile_small(small, request.param), tmp_path / "store")) as opened:
        yield opened


def test_fetches_keep_their_structure(session: ProgramSession, small: Small) -> None:
    name = small.output.name
    fetches = {"list": [small.output, name], "pair": Pair(name, (small.output,)), "ordered": OrderedDict(a=name)}
    values = session.run(fetches)
    assert isinstance(values["pair"], Pair)
    assert isinstance(values["ordered"], OrderedDict)
    loss = values["list"][0]
    assert values == {"list": [loss, loss], "pair": Pair(loss, (loss,)), "ordered": {"a": loss}}


def test_an_op_made_after_compiling_is_added_when_it_is_fetched(session: ProgramSession, small: Small) -> None:
    with small.graph.as_default():
        doubled = tf.multiply(small.output, 2.0)
        sparse = tf.SparseTensor([[1]], tf.reshape(doubled, [1]), [4])
    values = session.run([small.output, doubled, sparse])
    assert values[1] == 2 * values[0]
    assert values[2].values.tolist() == [values[1]]


def test_a_step_returns_scalars_of_all_tensors_of_rank_0(session: ProgramSession, small: Small) -> None:
    with small.graph.as_default():
        fetches = {"late": [tf.constant(0.5)], "text": Pair(tf.constant("a"), tf.constant([1.0]))}
        fetches["step"] = (tf.compat.v1.train.get_global_step(), small.train_op)
    values = session.run(OrderedDict(fetches))
    assert isinstance(values, OrderedDict)
    assert values["text"].first == b"a"
    assert isinstance(values["text"].second, np.ndarray)
    assert isinstance(values["late"][0], np.float32)
    assert isinstance(values["step"][0], np.int64)


def test_none_is_refused_as_a_fetch(session: ProgramSession) -> None:
    with pytest.raises(TypeError, match="Fetch argument None"):
        session.run([None])


def test_a_late_op_reads_a_streamed_weight_from_the_store(small: Small, tmp_path: Path) -> None:
    with small.graph.as_default():
        norm = tf.norm(small.graph.get_tensor_by_name("w/Read/ReadVariableOp:0"), name="late_norm")
    program = compile_small(small, "weight_streaming")
    with closing(open_small(small, program, tmp_path / "store")) as session:
        assert session.run(norm) == pytest.approx(np.linalg.norm(small.values["w"]), rel=1e-5)


def test_the_error_of_a_late_update_names_the_streamed_weight(small: Small, tmp_path: Path) -> None:
    with small.graph.as_default():
        handle = small.graph.get_tensor_by_name("w:0")
        delta = tf.zeros_like(small.graph.get_tensor_by_name("w/Read/ReadVariableOp:0"))
        update = tf.raw_ops.ResourceApplyGradientDescent(var=handle, alpha=1.0, delta=delta, name="late_update")
    program = compile_small(small, "weight_streaming")
    with (
        closing(open_small(small, program, tmp_path / "store")) as session,
        pytest.raises(CompileError, match=r"late_update.* needs w, which is streamed"),
    ):
        session.run(update)


def test_variables_are_set_and_read_by_their_checkpoint_names(session: ProgramSession, small: Small) -> None:
    for name, value in small.values.items():
        session.load(name, value + 1)
    for name, value in small.values.items():
        np.testing.assert_array_equal(session.read(name), value + 1)
    assert session.global_step == 1
    assert {spec.name for spec in session.weights()} == set(small.values)


def test_the_global_step_counts_training_steps_alone(session: ProgramSession, small: Small) -> None:
    session.run(small.output)
    assert session.global_step == 0
    session.run([small.train_op, small.output])
    session.run(small.train_op)
    assert session.global_step == 2


def test_a_snapshot_keeps_the_values_at_the_time_it_was_taken(session: ProgramSession, small: Small) -> None:
    session.run(small.train_op)
    expected = {name: session.read(name).copy() for name in small.values}
    snapshot = session.snapshot(small.values)
    session.run(small.train_op)
    kept = {}
    for name, dtype, shape, value in snapshot.take():
        pieces = [value] if isinstance(value, np.ndarray) else value
        flat = np.concatenate([piece.reshape(-1).view(np.uint8) for piece in pieces])
        kept[name] = flat.view(dtype).reshape(shape)
    snapshot.close()
    assert kept.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_array_equal(kept[name], value)
