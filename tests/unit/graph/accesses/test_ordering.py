"""Several writes of one variable in a step have one order, so their sum has one value."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from cerebras_tensorflow.compiler.options import StreamingOptions
from cerebras_tensorflow.compiler.step import Step, compile_step
from cerebras_tensorflow.graph.nodes import prune
from cerebras_tensorflow.graph.program import Residence
from cerebras_tensorflow.runtime.session import ProgramSession
from cerebras_tensorflow.runtime.weight_store.file import FileStore
from cerebras_tensorflow.runtime.weight_store.memory import MemoryStore

v1 = tf.compat.v1
TERMS = [1e8, 1.0, -1e8, 3.0, 1e-3, -7e7]


def slow(value: float, size: int) -> Any:
    """A number that an op makes after a time that grows with size."""
    wide = tf.ones([size, size])
    return value + 0.0 * tf.reduce_sum(tf.matmul(tf.matmul(wide, wide), wide))


def in_a_row(total: Any, terms: list[Any]) -> list[Any]:
    return [total.assign_add(term, read_value=False) for term in terms]


@contextmanager
def old_control_flow() -> Iterator[None]:
    """In this block, branches are Switch and Merge, and loops Enter and Exit."""
    v1.disable_control_flow_v2()
    try:
        yield
    finally:
        v1.enable_control_flow_v2()


def in_branches(total: Any, terms: list[Any]) -> list[Any]:
    def added(term: Any) -> Any:
        with tf.control_dependencies([total.assign_add(term, read_value=False)]):
            return tf.constant(0)

    zero = v1.placeholder_with_default(0, [])
    with old_control_flow():
        return [
            tf.cond(zero < 1, lambda term=term: added(term), lambda: tf.constant(0)).op
            if number % 2
            else total.assign_add(term, read_value=False)
            for number, term in enumerate(terms)
        ]


def in_a_row_with_reads(total: Any, terms: list[Any]) -> list[Any]:
    """Each second addition takes a value that was read after the first one."""
    first = total.assign_add(terms[0], read_value=False)
    with tf.control_dependencies([first]):
        read = total.read_value()
    return [first, total.assign_add(read, read_value=False), *in_a_row(total, terms[1:])]


def in_functions(total: Any, terms: list[Any]) -> list[Any]:
    """Each second addition is inside a tf.function, which also reads."""

    @tf.function(autograph=False)
    def added(term: Any) -> Any:
        total.assign(total + term)
        return total.read_value()

    return [
        added(term).op if number % 2 else total.assign_add(term, read_value=False) for number, term in enumerate(terms)
    ]


def in_loops(total: Any, terms: list[Any]) -> list[Any]:
    def added(number: Any, term: Any) -> Any:
        with tf.control_dependencies([total.assign_add(term)]):
            return number + 1, term * 0.5

    return [
        tf.while_loop(lambda number, _: number < 3, added, [0, term])[1].op
        if number % 2
        else total.assign_add(term, read_value=False)
        for number, term in enumerate(terms)
    ]


def in_old_loops(total: Any, terms: list[Any]) -> list[Any]:
    with old_control_flow():
        return in_loops(total, terms)


@pytest.mark.parametrize("build", [in_a_row, in_branches, in_a_row_with_reads, in_functions, in_loops, in_old_loops])
def test_several_additions_to_one_variable_give_one_result(build: Callable[[Any, list[Any]], list[Any]]) -> None:
    with tf.Graph().as_default() as graph:
        total = v1.get_variable("total", [], initializer=v1.zeros_initializer())
        terms = [slow(value, 300 if number % 3 == 0 else 2) for number, value in enumerate(TERMS)]
        train = tf.group(*build(total, terms), name="train")
        step = Step(graph.as_graph_def(), [train.name], train.name, [], None, [total.op.name])
        program = compile_step(step, "pipelined", StreamingOptions())
    config = v1.ConfigProto(inter_op_parallelism_threads=8)
    session = ProgramSession(program, graph, train.name, session_config=config)
    results = set()
    for _ in range(20):
        session.load("total", np.float32(0))
        session.run(train)
        results.add(float(session.read("total")))
    session.close()
    assert len(results) == 1


def by_function(total: Any) -> Any:
    @tf.function(autograph=False)
    def read() -> Any:
        with tf.control_dependencies([slow(0.0, 300)]):
            return 3.0 * total

    return read()


def by_loop(total: Any, start: Any = 0.0) -> Any:
    def body(number: Any, value: Any) -> Any:
        with tf.control_dependencies([slow(tf.cast(number, tf.float32), 200)]):
            return number + 1, value + total.read_value()

    with old_control_flow():
        return tf.while_loop(lambda number, _: number < 3, body, [0, start])[1]


def in_steps(train: Any, fetches: Any, start: dict[str, Any], mode: str = "pipelined") -> list[Any]:
    """Return what five steps fetch, each with the same values of the variables."""
    roots = [train.name, *(one.op.name for one in tf.nest.flatten(fetches))]
    step = Step(prune(train.graph.as_graph_def(), roots), roots, train.name, [], None, list(start))
    program = compile_step(step, mode, StreamingOptions(min_stream_bytes=0))
    store = MemoryStore(program.stored) if program.needs_store else None
    config = v1.ConfigProto(inter_op_parallelism_threads=8)
    session = ProgramSession(program, train.graph, train.name, store, config)
    seen = []
    for _ in range(5):
        for name, value in start.items():
            session.load(name, value)
        seen.append(session.run([fetches, train])[0])
    session.close()
    return seen


@pytest.mark.parametrize("read", [by_function, by_loop])
@pytest.mark.parametrize("is_needed", [True, False])
def test_a_function_or_loop_that_reads_comes_before_a_write(read: Callable[[Any], Any], is_needed: bool) -> None:
    with tf.Graph().as_default():
        total = v1.get_variable("total", [])
        seen = read(total)
        write = total.assign_add(2.0, read_value=False)
        train = tf.group(write, *([seen] if is_needed else []), name="train")
        assert in_steps(train, seen, {"total": np.float32(5)}) == [15.0] * 5


def test_a_loop_that_starts_after_a_write_reads_the_new_value() -> None:
    """The reads in its body do not wait for the value that it starts with."""
    with tf.Graph().as_default():
        total = v1.get_variable("total", [])
        write = total.assign_add(slow(2.0, 900), read_value=False)
        with tf.control_dependencies([write]):
            seen = by_loop(total, tf.identity(0.0))
        train = tf.group(write, seen, name="train")
        assert in_steps(train, seen, {"total": np.float32(5)}) == [21.0] * 5


@pytest.mark.parametrize("mode", ["pipelined", "weight_streaming"])
def test_reads_that_each_need_the_write_of_the_other_variable_have_one_order(mode: str) -> None:
    with tf.Graph().as_default():
        first, second = (v1.get_variable(name, [64]) for name in ("first", "second"))
        writes = [one.assign_add(tf.ones([64]), read_value=False) for one in (first, second)]
        seen = []
        for one, write in zip((first, second), reversed(writes), strict=True):
            with tf.control_dependencies([write]):
                seen.append(one.read_value()[0])
        train = tf.group(*writes, *seen, name="train")
        start = {"first": np.zeros(64, np.float32), "second": np.zeros(64, np.float32)}
        assert in_steps(train, seen, start, mode) == [[0.0, 1.0]] * 5


def test_draws_of_a_generator_have_the_order_of_the_model() -> None:
    with tf.Graph().as_default() as graph:
        generator = tf.random.Generator.from_seed(1)
        draws = []
        for size in (300, 2):
            with tf.control_dependencies([slow(1.0, size)]):
                draws.append(generator.normal([]))
        train = tf.group(*draws, name="train")
        name = next(op.name for op in graph.get_operations() if op.type == "VarHandleOp")
    state = tf.random.Generator.from_seed(1)
    start = {name: state.state.numpy()}
    expected = [float(state.normal([])) for _ in draws]
    with graph.as_default():
        assert in_steps(train, draws, start) == [expected] * 5


@pytest.mark.parametrize("mode", ["pipelined", "weight_streaming"])
def test_a_function_that_writes_a_variable_comes_where_the_model_calls_it(mode: str) -> None:
    """Reads before the call see the old value, reads after it the new one, and no update is lost."""
    with tf.Graph().as_default() as graph:
        count = v1.get_variable("count", [64], initializer=v1.zeros_initializer())

        @tf.function(autograph=False)
        def doubled() -> None:
            count.assign(count * 2.0 + slow(0.0, 300))

        before = count.read_value()
        doubled()
        call = graph.get_operations()[-1]
        after = count.read_value()
        added = count.assign_add(tf.ones([64]), read_value=False)
        train = tf.group(before, call, after, added, name="train")
        step = Step(graph.as_graph_def(), [train.name], train.name, [], None, [count.op.name])
        program = compile_step(step, mode, StreamingOptions(min_stream_bytes=0))
        session = ProgramSession(
            program, graph, train.name, session_config=v1.ConfigProto(inter_op_parallelism_threads=8)
        )
        session.load("count", np.full(64, 3, np.float32))
        seen = [[float(value[0]) for value in session.run([before, after, train])[:2]] for _ in range(5)]
        final = float(session.read("count")[0])
        session.close()
    values = [3.0]
    for _ in range(5):
        values.append(values[-1] * 2 + 1)
    assert seen == [[value, value * 2] for value in values[:-1]]
    assert final == values[-1]


def test_writes_of_slices_come_after_reads_and_in_the_order_of_the_model() -> None:
    """The reads wait for a slow op, and the first write for a slower one; the second write could run at once."""
    with tf.Graph().as_default() as graph:
        value = v1.get_variable("value", [4], initializer=v1.zeros_initializer())
        with tf.control_dependencies([slow(1.0, 300)]):
            read = value.read_value()
            gathered = tf.gather_nd(value, [[0], [3]])
        first = value[1:].assign(tf.fill([3], slow(1.0, 600))).op
        second = value[:2].assign([2.0, 2.0]).op
        train = tf.group(read, gathered, first, second, name="train")
        step = Step(graph.as_graph_def(), [train.name], train.name, [], None, [value.op.name])
        program = compile_step(step, "pipelined", StreamingOptions())
    assert [node.op for node in program.graph_def.node].count("ResourceStridedSliceAssign") == 2
    assert "ResourceGatherNd" in {node.op for node in program.graph_def.node}
    config = v1.ConfigProto(inter_op_parallelism_threads=8)
    session = ProgramSession(program, graph, train.name, session_config=config)
    for _ in range(5):
        session.load("value", np.full(4, 3, np.float32))
        seen = session.run([read, gathered, train])
        assert [list(one) for one in seen[:2]] == [[3.0] * 4, [3.0] * 2]
        assert list(session.read("value")) == [2.0, 2.0, 1.0, 1.0]
    session.close()


@pytest.mark.parametrize("is_taken", [True, False])
def test_a_loop_after_a_write_in_a_branch_runs_whether_or_not_the_branch_is_taken(is_taken: bool) -> None:
    """Reads of both variables would need each other's write, so the loop comes after the write of what it reads."""
    with tf.Graph().as_default():
        other, looped = (v1.get_variable(name, []) for name in ("other", "looped"))
        write = other.assign_add(1.0, read_value=False)

        def add() -> Any:
            with tf.control_dependencies([looped.assign_add(1.0, read_value=False)]):
                return tf.constant(0)

        with old_control_flow():
            done = tf.cond(v1.placeholder_with_default(is_taken, []), add, lambda: tf.constant(0))
        with tf.control_dependencies([done]):
            read = other.read_value()
        with tf.control_dependencies([write]):
            start = tf.identity(0.0)
        with old_control_flow():
            total = tf.while_loop(lambda n, _: n < 3, lambda n, sum_: (n + 1, sum_ + looped.read_value()), [0, start])[
                1
            ]
        train = tf.group(write, done, read, total, name="train")
        seen = in_steps(train, [read, total], {"other": np.float32(0), "looped": np.float32(0)})
    assert seen == [[0.0, 3.0 * is_taken]] * 5


@pytest.mark.parametrize("mode", ["pipelined", "weight_streaming"])
def test_an_evaluation_that_writes_a_variable_loses_no_update(mode: str, tmp_path: Path) -> None:
    """A read beside the writes sees the value of the batch before, and fetching a value does not run its update."""
    with tf.Graph().as_default() as graph:
        batch = v1.placeholder(tf.float32, [64], "cs_input/0")
        weight = v1.get_variable("weight", [64], initializer=v1.ones_initializer())
        seen = v1.get_variable("seen", [64], initializer=v1.zeros_initializer(), trainable=False)
        kept = v1.get_variable("kept", [64], initializer=v1.zeros_initializer(), trainable=False)
        first = seen.assign_add(batch * weight + slow(0.0, 300), read_value=False)
        second = seen.assign(seen * 2.0, read_value=False)
        beside = tf.identity(seen.read_value() + kept)
        value = tf.identity(seen.read_value())
        roots = [op.name for op in (first, second, beside.op, value.op, kept.initializer)]
        names = ["weight", "seen", "kept"]
        step = Step(graph.as_graph_def(), roots, None, ["cs_input/0"], None, names)
        options = StreamingOptions(min_stream_bytes=0, residence=Residence.STORE)
        program = compile_step(step, mode, options)
    fed = {"cs_input/0:0": np.ones(64, np.float32)}
    store = FileStore(program.stored, tmp_path) if program.streamed else None
    assert [spec.name for spec in program.streamed] == (["weight", "kept"] if store else [])
    config = v1.ConfigProto(inter_op_parallelism_threads=8)
    session = ProgramSession(program, graph, None, store, config, lambda: fed)
    for name, start in zip(names, (1.0, 3.0, 0.0), strict=True):
        session.load(name, np.full(64, start, np.float32))
    results = [[session.run([beside, first, second])[0][0], session.run(value)[0]] for _ in range(5)]
    session.close()
    # The two writes are ordered by the read of the second one, which comes before the first one.
    assert results == [[3.0 * 2**number, 3.0 * 2 ** (number + 1)] for number in range(5)]
