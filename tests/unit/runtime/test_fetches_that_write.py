"""Tests of which fetches may change variables outside of a step: the first CSX then sends them all again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import tensorflow as tf

from cerebras_tensorflow.graph.nodes import GraphDef
from cerebras_tensorflow.graph.program import Program
from cerebras_tensorflow.runtime.fetches import FetchedGraph

v1 = tf.compat.v1

WRITES: dict[str, Callable[[Any], Any]] = {
    "AssignVariableOp": lambda v: v.assign([1, 2]),
    "AssignAddVariableOp": lambda v: v.assign_add([1, 2]),
    "ResourceStridedSliceAssign": lambda v: v[0].assign(1),
    "ResourceScatterNdMin": lambda v: tf.raw_ops.ResourceScatterNdMin(ref=v.handle, indices=[[0]], updates=[1]),
    "ResourceScatterNdMax": lambda v: tf.raw_ops.ResourceScatterNdMax(ref=v.handle, indices=[[0]], updates=[1]),
    "ResourceCountUpTo": lambda v: tf.raw_ops.ResourceCountUpTo(resource=v.handle, limit=9, T=tf.int64),
    "RngReadAndSkip": lambda v: tf.raw_ops.RngReadAndSkip(resource=v.handle, alg=1, delta=tf.constant(1, tf.uint64)),
    "StatefulStandardNormalV2": lambda v: tf.raw_ops.StatefulStandardNormalV2(
        resource=v.handle, algorithm=tf.constant(1, tf.int64), shape=[2]
    ),
    "EagerPyFunc": lambda v: tf.py_function(lambda: 1, [], tf.int32),
}
READS: dict[str, Callable[[Any], Any]] = {
    "ReadVariableOp": lambda v: v.read_value(),
    "ResourceGather": lambda v: tf.gather(v, [0]),
    "ResourceGatherNd": lambda v: v.gather_nd([[0]]),
    "VariableShape": lambda v: tf.raw_ops.VariableShape(input=v.handle),
    "VarIsInitializedOp": lambda v: tf.raw_ops.VarIsInitializedOp(resource=v.handle),
    "RandomUniform": lambda v: tf.random.uniform([2]),
    # Of other resources. The graphs never run, so the handle of the variable stands for one.
    "QueueSizeV2": lambda v: tf.raw_ops.QueueSizeV2(handle=v.handle),
    "LookupTableFindV2": lambda v: tf.raw_ops.LookupTableFindV2(table_handle=v.handle, keys=[1], default_value=0),
    "IteratorGetNext": lambda v: tf.raw_ops.IteratorGetNext(
        iterator=v.handle, output_types=[tf.int32], output_shapes=[[]]
    )[0],
}


@pytest.mark.parametrize("place", ["top", "function", "cond"])
@pytest.mark.parametrize("kind", [*WRITES, *READS])
def test_a_fetch_may_write_unless_each_of_its_ops_is_known_not_to(kind: str, place: str) -> None:
    make = (WRITES | READS)[kind]
    original = tf.Graph()
    with original.as_default():
        v = v1.get_variable(
            "v", initializer=tf.zeros([] if kind == "ResourceCountUpTo" else [2], tf.int64), use_resource=True
        )

        def used() -> Any:
            result = make(v)
            with tf.control_dependencies([result]):
                return tf.constant(0)

        if place == "top":
            fetch = used()
        elif place == "function":
            fetch = tf.function(used, autograph=False)()
        else:
            fetch = tf.cond(tf.constant(True), tf.function(used, autograph=False), lambda: 0)
    functions = [node.op for function in original.as_graph_def().library.function for node in function.node_def]
    assert kind in ([one.type for one in original.get_operations()] if place == "top" else functions)
    fetched = FetchedGraph(Program("pipelined", GraphDef(), None, (), ()), GraphDef(), original)
    name = fetched.mapped(fetch).op.name
    assert fetched.may_write(frozenset([name]), is_step=True) == (kind in WRITES)
