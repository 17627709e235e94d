"""A step on a second device, here a second CPU in place of a GPU: weights come from the host, and no bit changes."""

from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

from cerebras_tensorflow.graph.program import Residence
from cerebras_tensorflow.runtime.weight_store.file import FileStore
from cerebras_tensorflow.runtime.weight_store.mapped import MappedStore
from tests.unit.compiler.small_graphs import MakeStore, Outcome, build, compile_small, open_small, run_small, weight

v1 = tf.compat.v1
DEVICE = "/device:CPU:1"
STORES: dict[Residence, MakeStore] = {
    Residence.HOST_MEMORY: MappedStore,  # not used
    Residence.MAPPED_FILE: MappedStore,
    Residence.STORE: lambda specs, folder: FileStore(specs, folder),
}


def model(x: Any, step: Any) -> tuple[Any, Any]:
    with tf.device(DEVICE):
        hidden = tf.nn.relu(x @ weight("a") + tf.gather(weight("table"), [0, 3, 3, 1]))
        loss = tf.reduce_sum((hidden @ weight("b")) ** 2)
        return loss, v1.train.AdamOptimizer(0.01).minimize(loss, step)


@pytest.mark.parametrize("residence", STORES)
def test_the_step_runs_on_the_second_device_with_the_same_bits(tmp_path: Path, residence: Residence) -> None:
    small = build(model)
    program = compile_small(small, "weight_streaming", residence=residence)
    config = v1.ConfigProto(device_count={"CPU": 2})
    traced = v1.RunMetadata()
    with closing(open_small(small, program, tmp_path / "store", STORES[residence], config)) as session:
        assert any(device.name.endswith(DEVICE) for device in session.list_devices())
        outputs = [
            session.run([small.train_op, small.output], None, v1.RunOptions(output_partition_graphs=True), traced)[-1]
            for _ in range(4)
        ]
        result = Outcome(program, outputs, {name: session.read(name).copy() for name in small.values})
    assert len(program.streamed) == 9, "three weights with two slots each"
    assert result.bits() == run_small(small, "pipelined").bits()
    nodes = [node for part in traced.partition_graphs for node in part.node]
    assert {node.device[-len(DEVICE) :] for node in nodes if node.op in ("Relu", "ReluGrad")} == {DEVICE}
    if residence is Residence.HOST_MEMORY:
        names = {spec.name.encode() for spec in program.streamed}
        held = {node.device for node in nodes if node.op == "VarHandleOp" and node.attr["shared_name"].s in names}
        assert {device[-len(DEVICE) :] for device in held} == {"/device:CPU:0"}, "the weights stay on the host"
