"""Masks in the graph of a step: which variables belong to a weight, and what is masked, with any optimizer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from cerebras_tensorflow.errors import SettingsError
from cerebras_tensorflow.estimator.model.sparse_weights import SparseGraph, SparseWeight
from cerebras_tensorflow.sparsity import configure

v1 = tf.compat.v1
W = "dense/kernel"
MASK = np.eye(4, dtype=bool)


def variable(name: str, value: float = 0.0, is_trained: bool = False) -> Any:
    initial = v1.constant_initializer(value)
    return v1.get_variable(name, [4, 4], initializer=initial, trainable=is_trained, use_resource=True)


def adam(weight: Any, loss: Any) -> Any:
    return v1.train.AdamOptimizer(0.1).minimize(loss, var_list=[weight])


def masked_graph(build: Callable[[Any, Any], Any]) -> tuple[tf.Graph, SparseWeight, Any]:
    """Return the graph of a step that `build` makes from a weight and its loss, the weight, and the train op."""
    graph = tf.Graph()
    with graph.as_default():
        choice = configure({"sparsity": 0.75, "param_filter": W})
        assert choice is not None
        sparse = SparseGraph(graph, choice)
        with sparse.masked_gradients():
            weight = variable(W, 1.0, is_trained=True)
            train_op = build(weight, tf.reduce_sum(tf.square(weight - 3.0)))
        found, spec = sparse.finish(Spec(train_op=train_op))
    return graph, found[0], spec.train_op


class Spec(SimpleNamespace):
    """A spec with a train op."""

    def _replace(self, **fields: Any) -> Spec:
        return Spec(**{**vars(self), **fields})


def trained(build: Callable[[Any, Any], Any], steps: int = 3) -> Mapping[str, np.ndarray]:
    """Return the variables after some steps from a masked weight."""
    graph, weight, train_op = masked_graph(build)
    with v1.Session(graph=graph) as session:
        session.run([one.initializer for one in graph.get_collection("variables")])
        by_name = {one.name.split(":")[0]: one for one in graph.get_collection("variables")}
        by_name[weight.mask].load(MASK, session)
        by_name[weight.name].load(MASK.astype(np.float32), session)
        for _ in range(steps):
            session.run(train_op)
        return session.run(by_name)


def test_a_frozen_or_averaged_copy_of_the_weight_is_no_slot() -> None:
    def build(weight: Any, loss: Any) -> Any:
        teacher, frozen = variable(f"teacher/{W}", 2.0), variable(f"frozen/{W}/copy", 2.0)
        step = adam(weight, loss + tf.reduce_sum(tf.matmul(weight - teacher, frozen)))
        with tf.control_dependencies([step]):
            return teacher.assign(0.5 * teacher + 0.5)

    assert set(masked_graph(build)[1].slots) == {f"{W}/Adam", f"{W}/Adam_1"}


@pytest.mark.parametrize("is_slice", [False, True])
def test_slots_are_known_by_the_op_that_writes_them_and_by_their_use(is_slice: bool) -> None:
    def build(weight: Any, loss: Any) -> Any:
        own, keras = variable("own"), variable(f"Adam/m/{W}")
        (gradient,) = tf.gradients(loss, [weight])
        new = keras.assign(0.9 * keras + gradient)
        moment = tf.raw_ops.ResourceApplyMomentum(
            var=weight.handle, accum=own.handle, lr=0.1, grad=gradient, momentum=0.9
        )
        changed = weight[:].assign(weight - 0.1 * new).op if is_slice else weight.assign_sub(0.1 * new)
        return tf.group(moment, changed)

    assert set(masked_graph(build)[1].slots) == {"own", f"Adam/m/{W}"}


@pytest.mark.parametrize("is_before", [False, True])
def test_a_name_of_a_mask_that_the_model_uses_is_refused(is_before: bool) -> None:
    def build(weight: Any, loss: Any) -> Any:
        if is_before:
            variable(f"{W}_mask")
        step = adam(weight, loss)
        if not is_before:
            variable(f"{W}_mask")
        return step

    with pytest.raises(SettingsError, match=f"the mask of {W} needs the name {W}_mask"):
        masked_graph(build)


def custom(update: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """An optimizer w -= 0.1 update(g, v) with v += g g."""

    def build(weight: Any, loss: Any) -> Any:
        v = variable(f"{W}/v")
        (gradient,) = tf.gradients(loss, [weight])
        with tf.control_dependencies([v.assign_add(tf.square(gradient))]):
            new = v.read_value()
        return weight.assign_sub(0.1 * update(gradient, new))

    return build


def in_a_function(weight: Any, loss: Any) -> Any:
    """An optimizer in a tf.function that another one calls; its slot never becomes zero on its own."""
    v = variable(f"{W}/v")

    @tf.function
    def inner(gradient: Any) -> None:
        v.assign_add(gradient + 1.0)
        weight.assign_sub(0.1 * v)

    @tf.function
    def outer(gradient: Any) -> Any:
        inner(gradient)
        return tf.constant(0)

    (gradient,) = tf.gradients(loss, [weight])
    return outer(gradient).op


def by_slices(weight: Any, loss: Any) -> Any:
    """An optimizer that writes slices; its slot never becomes zero on its own."""
    v = variable(f"{W}/v")
    (gradient,) = tf.gradients(loss, [weight])
    with tf.control_dependencies([v[:].assign(v + gradient + 1.0).op]):
        new = v.read_value()
    return weight[:].assign(weight - 0.1 * new).op


@pytest.mark.parametrize(
    "build",
    [
        in_a_function,
        by_slices,
        custom(lambda g, v: g * tf.pow(v, -0.5)),
        custom(lambda g, v: g * tf.math.log(v)),
        custom(lambda g, v: g * tf.exp(-tf.math.log(v) / 2)),
        custom(lambda g, v: g / (tf.sqrt(v - 1.0) + 1e-3)),
        custom(lambda g, v: g / (tf.sqrt(v) + tf.cast(tf.cast(1e-9, tf.float16), tf.float32))),
        lambda w, loss: v1.train.AdamOptimizer(0.1, epsilon=0.0).minimize(loss, var_list=[w]),
        lambda w, loss: v1.train.RMSPropOptimizer(0.1, epsilon=0.0).minimize(loss, var_list=[w]),
    ],
)
def test_masked_weights_stay_zero_with_updates_that_are_not_finite_at_zero(build: Callable[[Any, Any], Any]) -> None:
    values = trained(build)
    family = [name for name in values if name.startswith(W) and not name.endswith("_mask")]
    assert len(family) > 1
    for name in family:
        assert not values[name][~MASK].any(), name


def test_a_proved_update_gets_no_mask() -> None:
    graph, _, _ = masked_graph(custom(lambda g, v: g / (tf.sqrt(v) + 1e-3)))
    selects = [op for op in graph.get_operations() if op.type == "SelectV2"]
    assert len(selects) == 1  # the gradient
