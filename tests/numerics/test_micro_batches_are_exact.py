"""A step in micro-batches gives the same bits in every mode and store, and those of the documented arithmetic."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tf_keras

from cerebras_tensorflow.errors import CompileError
from reference_implementations.common.optimizers.make import training_step
from reference_implementations.common.sections import OptimizerSettings
from tests.numerics.micro_batches import BATCH, Cut, Result, batches, build, different, tied_loss, train, weight

v1 = tf.compat.v1

SETTINGS = {
    "adamw": OptimizerSettings(learning_rate=1e-2, weight_decay_rate=0.1, max_gradient_norm=0.5),
    "momentum": OptimizerSettings(optimizer_type="momentum", learning_rate=1e-2, use_nesterov=True),
    "lamb": OptimizerSettings(optimizer_type="lamb", learning_rate=1e-2, loss_scaling_factor="dynamic"),
    "adafactor": OptimizerSettings(optimizer_type="adafactor", learning_rate=1e-2),
    "accumulated": OptimizerSettings(learning_rate=1e-2, grad_accum_steps=2, max_gradient_norm=0.5),
}
TRAINERS: dict[str, Callable[[Any, Any], Any]] = {
    "adam": lambda loss, step: v1.train.AdamOptimizer(1e-2).minimize(loss, step),  # sparse rows of the embedding
    "lazy momentum": lambda loss, step: v1.train.MomentumOptimizer(0.1, 0.9).minimize(loss, step),
    **{name: partial(lambda settings, loss, _: training_step(loss, settings), one) for name, one in SETTINGS.items()},
}


def adam(loss: Any, step: Any) -> Any:
    return v1.train.AdamOptimizer(1e-2).minimize(loss, step)


def assert_same_everywhere(cut: Cut, folder: Path, steps: int = 3) -> Result:
    """Train pipelined, and streamed from memory, a mapped file and a file; all agree in every bit. Return the last."""
    pipelined = train(cut, steps=steps)
    for store, is_mapped in ((None, False), (folder, True), (folder, False)):
        streamed = train(cut, "weight_streaming", steps, store, is_mapped)
        assert streamed.losses == pipelined.losses
        assert not different(streamed, pipelined)
    assert any(not np.array_equal(value, cut.values[name]) for name, value in pipelined.variables.items())
    return streamed


ALSO_SLOW = [pytest.param(name, marks=pytest.mark.slow) for name in ("momentum", "lamb", "adafactor", "accumulated")]


@pytest.mark.parametrize("name", ["adam", "adamw", "lazy momentum", *ALSO_SLOW])
def test_every_mode_and_store_gives_the_same_bits(name: str, tmp_path: Path) -> None:
    result = assert_same_everywhere(build(TRAINERS[name]), tmp_path)
    plan = result.program.micro_batches
    assert plan is not None
    assert any(gradient.stored is not None for gradient in plan.gradients), "a large total is in the store"
    assert any(gradient.stored is None for gradient in plan.gradients), "a small one is in memory"


def test_bfloat16_gives_the_same_bits_in_every_mode_and_store(tmp_path: Path) -> None:
    assert_same_everywhere(build(adam, partial(tied_loss, dtype=tf.bfloat16)), tmp_path)


def tree_sum(values: list[np.ndarray]) -> np.ndarray:
    """The documented sum: of the first k values and of the others, k the largest power of two below their number."""
    if len(values) == 1:
        return values[0]
    k = 1 << ((len(values) - 1).bit_length() - 1)
    return tree_sum(values[:k]) + tree_sum(values[k:])


@pytest.mark.parametrize("count", [2, 3, 4, 8])
def test_the_update_takes_the_sum_in_a_balanced_tree_divided_by_the_count(count: int) -> None:
    """Against gradients of a plain TensorFlow session that NumPy adds."""
    batch, rate = 24, 0.5
    plain_loss = partial(tied_loss, dropout=0.0)
    descent = lambda loss, step: v1.train.GradientDescentOptimizer(rate).minimize(loss, step)  # noqa: E731
    data = batches(1, batch)
    cut = build(descent, plain_loss, count, batch)
    variables = train(cut, steps=1, data=data).variables

    with tf.Graph().as_default() as graph:
        ids = v1.placeholder(tf.int32, [batch // count, 4])
        targets = v1.placeholder(tf.int32, [batch // count])
        loss = plain_loss(ids, targets)
        dense = [one for one in v1.trainable_variables() if one.op.name != "embedding"]
        gradients = tf.gradients(loss, dense)
        with v1.Session(graph=graph) as session:
            for variable in v1.trainable_variables():
                variable.load(cut.values[variable.op.name], session)
            size = batch // count
            parts = []
            for at in range(0, batch, size):
                fed = {ids: data[0]["cs_input/0:0"][at : at + size], targets: data[0]["cs_input/1:0"][at : at + size]}
                parts.append(session.run(gradients, fed))
    for number, variable in enumerate(dense):
        name = variable.op.name
        mean = tree_sum([part[number] for part in parts]) / np.float32(count)
        assert np.array_equal(variables[name], cut.values[name] - np.float32(rate) * mean)


def test_losses_are_means_and_agree_with_the_whole_batch() -> None:
    whole = train(build(adam, partial(tied_loss, dropout=0.0), 1))
    cut = train(build(adam, partial(tied_loss, dropout=0.0), 4))
    np.testing.assert_allclose(cut.losses, whole.losses, rtol=1e-6)
    for name, value in whole.variables.items():
        np.testing.assert_allclose(cut.variables[name], value, rtol=1e-3, atol=1e-5)  # Adam magnifies rounding


@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_equal_micro_batches_have_equal_losses_only_without_dropout(dropout: float) -> None:
    one = {name: value[:1] for name, value in batches(1)[0].items()}
    data = [{name: np.repeat(value, BATCH, axis=0) for name, value in one.items()}]
    cut = build(adam, partial(tied_loss, dropout=dropout), BATCH)
    first = build(adam, partial(tied_loss, dropout=dropout), 1, 1)
    alone = train(first, steps=1, data=[one]).losses
    assert (train(cut, steps=1, data=data).losses == alone) == (dropout == 0.0)


def test_an_overflow_in_one_micro_batch_skips_the_update(tmp_path: Path) -> None:
    settings = OptimizerSettings(optimizer_type="adam", learning_rate=1e-2, loss_scaling_factor="dynamic")

    def loss(ids: Any, targets: Any) -> Any:
        scale = tf.where(tf.reduce_any(tf.equal(ids, 49)), 1e30, 1.0)  # one sample, of one micro-batch, has this id
        return tied_loss(ids, targets) * scale * scale

    data = batches(3)
    data[1]["cs_input/0:0"][5, 2] = 49
    cut = build(lambda value, _: training_step(value, settings), loss)
    before = train(cut, steps=1, data=data)
    for mode, folder in (("pipelined", None), ("weight_streaming", tmp_path)):
        after = train(cut, mode, 2, folder, data=data)
        changed = set(different(before, after))
        assert "embedding" not in changed and "w" not in changed and "embedding/Adam" not in changed
        assert after.variables["current_loss_scale"] == before.variables["current_loss_scale"] / 2
        assert not np.isfinite(after.losses[1])


def test_moving_averages_take_the_mean_of_the_micro_batches(tmp_path: Path) -> None:
    def loss(ids: Any, targets: Any) -> Any:
        x = tf.cast(ids, tf.float32)
        average = v1.get_variable("average", [4], initializer=v1.zeros_initializer(), trainable=False)
        update = average.assign_sub(0.25 * (average - tf.reduce_mean(x, 0)))
        v1.add_to_collection(v1.GraphKeys.UPDATE_OPS, update)
        return tied_loss(ids, targets)

    def with_updates(value: Any, step: Any) -> Any:
        with tf.control_dependencies(v1.get_collection(v1.GraphKeys.UPDATE_OPS)):
            return adam(value, step)

    result = assert_same_everywhere(build(with_updates, loss), tmp_path, steps=1)
    mean = batches(1)[0]["cs_input/0:0"].mean(0)
    np.testing.assert_allclose(result.variables["average"], 0.25 * mean, rtol=1e-6)


def test_summaries_take_means_of_scalars_and_other_values_of_the_first_micro_batch() -> None:
    losses: list[Any] = []

    def loss(ids: Any, targets: Any) -> Any:
        losses.append(tied_loss(ids, targets, dropout=0.0))
        v1.summary.scalar("loss", losses[-1])
        v1.summary.scalar("ids", tf.reduce_mean(tf.cast(ids, tf.float32)))
        v1.summary.histogram("targets", targets)
        return losses[-1]

    cut = build(adam, loss, fetch=lambda: {"summary": v1.summary.merge_all()})
    data = batches(1)
    fetched = train(cut, steps=1, data=data).fetched[0]
    values = {value.tag: value for value in v1.Summary.FromString(fetched["summary"]).value}
    assert values["loss"].simple_value == fetched["loss"]
    assert values["ids"].simple_value == pytest.approx(data[0]["cs_input/0:0"].mean())
    assert values["targets"].histo.num == BATCH // 4
    assert values["targets"].histo.sum == data[0]["cs_input/1:0"][: BATCH // 4].sum()


@pytest.mark.parametrize("is_streamed", [False, True])
def test_tensors_that_hooks_make_follow_the_same_rules(is_streamed: bool, tmp_path: Path) -> None:
    def later() -> dict[str, Any]:
        graph = v1.get_default_graph()
        ids = graph.get_tensor_by_name("cs_input/0:0")
        mean = tf.reduce_mean(tf.cast(ids, tf.float32))
        norm = graph.get_tensor_by_name("norm:0")
        return {"mean": mean, "ids": ids, "both": mean * norm, "summary": v1.summary.scalar("mean", mean)}

    def clipped(loss: Any, step: Any) -> Any:
        optimizer = v1.train.AdamOptimizer(1e-2)
        gradients, variables = zip(*optimizer.compute_gradients(loss), strict=True)
        gradients, norm = tf.clip_by_global_norm(gradients, 0.5)
        tf.identity(norm, name="norm")
        return optimizer.apply_gradients(zip(gradients, variables, strict=True), step)

    data = batches(1)
    mode = "weight_streaming" if is_streamed else "pipelined"
    cut = build(clipped, fetch=lambda: {"norm": v1.get_default_graph().get_tensor_by_name("norm:0")})
    fetched = train(cut, mode, 1, tmp_path if is_streamed else None, data=data, later=later).fetched[0]
    ids = data[0]["cs_input/0:0"]
    assert fetched["mean"] == pytest.approx(ids.mean())
    assert np.array_equal(fetched["ids"], ids[: BATCH // 4])
    assert fetched["both"] == pytest.approx(ids.mean() * fetched["norm"])
    assert v1.Summary.FromString(fetched["summary"]).value[0].simple_value == pytest.approx(ids.mean())


@pytest.mark.parametrize("is_streamed", [False, True])
def test_a_fetched_gradient_is_its_total(is_streamed: bool, tmp_path: Path) -> None:
    gradients: dict[str, Any] = {}

    def by_pairs(loss: Any, step: Any) -> Any:
        optimizer = v1.train.GradientDescentOptimizer(1.0)
        pairs = optimizer.compute_gradients(loss)
        gradients.update({one.op.name: gradient for gradient, one in pairs})
        return optimizer.apply_gradients(pairs, step)

    cut = build(by_pairs)
    mode = "weight_streaming" if is_streamed else "pipelined"
    result = train(cut, mode, 1, tmp_path if is_streamed else None, later=lambda: {"w": gradients["w"]})
    assert np.array_equal(cut.values["w"] - result.fetched[0]["w"], result.variables["w"])


def by_hand(loss: Any, step: Any) -> Any:
    """Changes a weight by a value of the batch that is no gradient from TensorFlow."""
    w = next(one for one in v1.trainable_variables() if one.op.name == "w")
    return tf.group(w.assign_sub(tf.ones_like(w) * loss), adam_of_bias(loss, step))


def adam_of_bias(loss: Any, step: Any) -> Any:
    bias = [one for one in v1.trainable_variables() if one.op.name == "bias"]
    return v1.train.AdamOptimizer(1e-2).minimize(loss, step, var_list=bias)


def in_function(loss: Any, step: Any) -> Any:
    """Computes the gradient of a read, not of the variable."""
    bias = next(one for one in v1.trainable_variables() if one.op.name == "bias")
    return tf.group(bias.assign_sub(tf.zeros_like(bias) * loss), step.assign_add(1))


def counting(loss: Any, step: Any) -> Any:
    """Counts samples with an integer."""
    seen = v1.get_variable("seen", [], tf.int32, v1.zeros_initializer(), trainable=False)
    ids = v1.get_default_graph().get_tensor_by_name("cs_input/0:0")
    return tf.group(adam(loss, step), seen.assign_add(tf.reduce_max(ids)))


def moved_first(loss: Any, step: Any) -> Any:
    """Uses a variable's new value in the loss."""
    scale = v1.get_variable("scale", [], initializer=v1.ones_initializer(), trainable=False)
    return adam(loss * scale.assign_add(1.0), step)


def average(loss: Any, step: Any, condition: Callable[[Any, Any], Any] | None = None) -> Any:
    """Adds the square of the loss to an average: in a branch with a condition, else in a loop."""
    added = v1.get_variable("average", [], initializer=v1.zeros_initializer(), trainable=False)

    def add(number: Any = 0) -> Any:
        with tf.control_dependencies([added.assign_add(loss * loss)]):
            return tf.constant(1) + number

    if condition is None:
        return tf.group(adam(loss, step), tf.while_loop(lambda number: number < 2, add, [0]))
    return tf.group(adam(loss, step), tf.cond(condition(loss, step), add, lambda: 0))


def test_a_value_of_the_batch_in_a_branch_is_carried_to_the_update() -> None:
    """Its mean, as outside of a branch, in the steps that take the branch."""

    def averages(condition: Callable[[Any, Any], Any]) -> list[float]:
        cut = build(partial(average, condition=condition))
        return [float(train(cut, steps=steps).variables["average"]) for steps in (1, 2)]

    first, second = averages(lambda loss, step: tf.less(step.read_value(), 9))
    assert averages(lambda loss, step: tf.equal(step.read_value(), 1)) == [0.0, pytest.approx(second - first)]
    assert averages(lambda loss, step: tf.greater(step.read_value(), 9)) == [0.0] * 2
    assert 0.0 < first < second


@pytest.mark.parametrize(
    "trainer, message",
    [
        (average, "inside a while loop"),
        (partial(average, condition=lambda loss, _: loss > 0.0), "whose condition depends on the batch"),
        (by_hand, "changes w by a value of the batch that is not a gradient we know. Compute gradients"),
        (in_function, "changes bias by a value of the batch"),
        (counting, "depends on the batch and is not a floating-point value"),
        (moved_first, "changes a variable before the gradients are known"),
        (lambda loss, step: step.assign_add(1), "takes no gradient"),
    ],
    ids=["loop", "condition", "by hand", "no gradient", "integer", "write before", "no update"],
)
def test_a_step_that_would_be_trained_wrongly_is_refused(trainer: Any, message: str) -> None:
    with pytest.raises(CompileError, match=message):
        train(build(trainer), steps=1)


def test_a_tape_and_keras_optimizers_mark_their_gradients() -> None:
    def taped(loss_of: Any) -> Any:
        def loss(ids: Any, targets: Any) -> Any:
            with tf.GradientTape() as tape:
                value = loss_of(ids, targets)
            tapes.append(tape)
            return value

        return loss

    tapes: list[Any] = []

    def by_tape(loss: Any, step: Any) -> Any:
        variables = v1.trainable_variables()
        pairs = zip(tapes[-1].gradient(loss, variables), variables, strict=True)
        return v1.train.GradientDescentOptimizer(0.5).apply_gradients(pairs, step)

    def by_session(loss: Any, step: Any) -> Any:
        return v1.train.GradientDescentOptimizer(0.5).minimize(loss, step)

    expected = train(build(by_session))
    assert not different(train(build(by_tape, taped(tied_loss))), expected)


def by_keras(loss: Any, step: Any) -> Any:
    optimizer = tf_keras.optimizers.legacy.Adam(1e-2)
    optimizer.iterations = step
    return tf.group(optimizer.get_updates(loss, v1.trainable_variables()))


def by_function(loss: Any, step: Any) -> Any:
    """Changes the weights inside a function."""
    pairs = v1.train.GradientDescentOptimizer(0.1).compute_gradients(loss)

    @tf.function
    def update(*gradients: Any) -> None:
        for gradient, (_, variable) in zip(gradients, pairs, strict=True):
            variable.assign_sub(0.1 * gradient)

    update(*(tf.convert_to_tensor(gradient) for gradient, _ in pairs))
    call = next(op for op in v1.get_default_graph().get_operations() if op.type == "StatefulPartitionedCall")
    return tf.group(call, step.assign_add(1))


@pytest.mark.parametrize("trainer", [by_keras, by_function])
def test_updates_by_keras_and_inside_functions_are_found(trainer: Any, tmp_path: Path) -> None:
    assert_same_everywhere(build(trainer), tmp_path, steps=2)


def test_a_function_of_the_model_that_changes_a_variable_is_refused() -> None:
    def loss(ids: Any, targets: Any) -> Any:
        seen = v1.get_variable("seen", [], initializer=v1.zeros_initializer(), trainable=False)

        @tf.function
        def counted(x: Any) -> Any:
            seen.assign_add(1.0)
            return tf.tanh(x)  # its gradient takes the result

        return counted(tied_loss(ids, targets))

    with pytest.raises(CompileError, match="changes a variable before the gradients are known"):
        train(build(adam, loss), steps=1)


def test_a_weight_that_only_the_update_reads_can_be_trained_with() -> None:
    def decayed(loss: Any, step: Any) -> Any:
        w = next(one for one in v1.trainable_variables() if one.op.name == "w")
        (gradient,) = tf.gradients(loss, [w])
        extra = weight("extra", [16, 16])
        return tf.group(w.assign_sub(0.1 * gradient + 0.01 * extra * w), step.assign_add(1))

    assert train(build(decayed)).losses[0] > 0


def looped_loss(ids: Any, targets: Any) -> Any:
    """A loss of a while loop, whose shape TensorFlow does not know in the compiled graph."""
    start = tf.zeros([ids.shape[0], 16])
    matrix = weight("recurrent", [16, 16])
    embedded = tf.nn.embedding_lookup(weight("inputs", [50, 16]), ids)
    _, state = tf.while_loop(
        lambda number, _: number < 4,
        lambda number, state: (number + 1, tf.tanh(state @ matrix + embedded[:, number])),
        [tf.constant(0), start],
    )
    return tied_loss(ids, targets, dropout=0.0) + tf.reduce_mean(state**2)


def second_order_loss(ids: Any, targets: Any) -> Any:
    """A loss with the norm of a gradient in it: this gradient belongs to the micro-batch."""
    loss = tied_loss(ids, targets, dropout=0.0)
    (gradient,) = tf.gradients(loss, [v1.get_default_graph().get_collection("trainable_variables")[1]])
    return loss + 0.1 * tf.reduce_sum(gradient**2)


@pytest.mark.parametrize("loss", [looped_loss, second_order_loss])
def test_the_loss_is_the_mean_of_the_losses_of_the_micro_batches(loss: Any, tmp_path: Path) -> None:
    data = batches(1)[0]
    alone = [
        train(build(adam, loss, 1, 2), steps=1, data=[{name: value[at : at + 2] for name, value in data.items()}])
        for at in range(0, BATCH, 2)
    ]
    result = assert_same_everywhere(build(adam, loss), tmp_path, steps=1)
    assert result.losses[0] == pytest.approx(np.mean([one.losses[0] for one in alone]), rel=1e-6)
