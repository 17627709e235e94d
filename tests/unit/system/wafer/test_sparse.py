"""Sparse weights take work and bytes from the layers that they belong to, and from no others."""

from __future__ import annotations

from cerebras_tensorflow.system.wafer.layers import ATTENTION, MATRIX_PRODUCT, Layer, Network
from cerebras_tensorflow.system.wafer.simulate import Workload, simulate
from cerebras_tensorflow.system.wafer.sparse import sparse_network


def test_work_falls_with_the_masked_share() -> None:
    size = 1 << 24
    numbers = {"flops": 6e12, "forward_flops": 2e12, "rows": 1024.0, "input_elements": 1e6, "output_elements": 1e6}
    weights = {"num_weights": size, "num_own_weights": size, "weight_bytes": 2 * size, "gradient_bytes": 2 * size}
    layers = tuple(Layer(f"block/{name}", MATRIX_PRODUCT, **numbers, **weights) for name in ("one", "two"))
    dense = Network((*layers, Layer("block/attention", ATTENTION, flops=1e9, forward_flops=3e8)), True, 100.0)
    sparse = sparse_network(dense, {"block/one/kernel": 0.75 * size, "other/kernel": size})
    assert [layer.flops for layer in sparse.layers] == [1.5e12, 6e12, 1e9]
    assert sparse.layers[0].weight_bytes == size  # a quarter of the weights, with an index each
    assert sparse.layers[1:] == dense.layers[1:]
    workload = Workload("weight_streaming", 16)
    assert simulate(sparse, workload).step_s < simulate(dense, workload).step_s
