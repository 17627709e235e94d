"""session_snapshot: copies of resident variables reuse the memory of earlier copies."""

import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf

from cerebras_tensorflow.graph.program import WeightSpec
from cerebras_tensorflow.runtime import session_snapshot
from cerebras_tensorflow.runtime.session_snapshot import Elsewhere, ResidentCopies, SessionSnapshot

VALUES: dict[str, np.ndarray] = {
    "kernel": np.arange(6, dtype=np.float32).reshape(2, 3),
    "half": np.ones((5,), ml_dtypes.bfloat16),
    "flag": np.array(True),
    "empty": np.zeros((0, 4), np.float16),
    "global_step": np.array(3, np.int64),
}
SPECS = [WeightSpec(name, value.dtype.name, value.shape, value.nbytes) for name, value in VALUES.items()]


class Variables:
    """A session with variables of some values, and an op that adds to one of them in place."""

    def __init__(self) -> None:
        self.graph = tf.Graph()
        with self.graph.as_default():
            variables = {
                name: tf.compat.v1.get_variable(name, initializer=value, use_resource=True)
                for name, value in VALUES.items()
            }
            self.values = {name: variable.read_value() for name, variable in variables.items()}
            self.add = tf.raw_ops.AssignAddVariableOp(resource=variables["kernel"].handle, value=tf.ones((2, 3)))
            initializer = tf.compat.v1.global_variables_initializer()
        self.session = tf.compat.v1.Session(graph=self.graph)
        self.session.run(initializer)


def test_copies_keep_the_values_at_the_time_of_the_copy() -> None:
    variables = Variables()
    copies = ResidentCopies(variables.graph).take(variables.session, variables.values)
    variables.session.run(variables.add)
    assert list(copies) == list(VALUES)
    for name, value in VALUES.items():
        assert copies[name].dtype == value.dtype
        np.testing.assert_array_equal(copies[name], value)


def test_the_next_copies_reuse_recycled_memory() -> None:
    variables = Variables()
    copies = ResidentCopies(variables.graph)
    first = copies.take(variables.session, variables.values)
    variables.session.run(variables.add)
    second = copies.take(variables.session, variables.values)  # the first still is in use
    np.testing.assert_array_equal(first["kernel"], VALUES["kernel"])
    np.testing.assert_array_equal(second["kernel"], VALUES["kernel"] + 1)
    place = first["kernel"].ctypes.data
    snapshot = SessionSnapshot(SPECS, first, Elsewhere(), {}, None, copies.recycle)
    assert {name for name, *_ in snapshot.take()} == set(VALUES)
    snapshot.close()
    assert copies.kept_bytes == sum(value.nbytes for value in VALUES.values())
    third = copies.take(variables.session, variables.values)
    assert copies.kept_bytes == 0
    assert third["kernel"].ctypes.data == place
    np.testing.assert_array_equal(third["kernel"], VALUES["kernel"] + 1)


def test_recycled_memory_is_not_kept_if_memory_is_scarce(monkeypatch: pytest.MonkeyPatch) -> None:
    variables = Variables()
    copies = ResidentCopies(variables.graph)
    taken = copies.take(variables.session, variables.values)
    monkeypatch.setattr(session_snapshot, "free_memory_bytes", lambda: 50)
    copies.recycle(taken)
    assert copies.kept_bytes == 0


def test_the_first_copies_use_prepared_memory() -> None:
    variables = Variables()
    copies = ResidentCopies(variables.graph)
    copies.prepare(WeightSpec(name, value.dtype.name, value.shape, value.nbytes) for name, value in VALUES.items())
    assert copies.kept_bytes == sum(value.nbytes for value in VALUES.values())
    taken = copies.take(variables.session, variables.values)
    assert copies.kept_bytes == 0
    for name, value in VALUES.items():
        assert taken[name].dtype == value.dtype
        np.testing.assert_array_equal(taken[name], value)
