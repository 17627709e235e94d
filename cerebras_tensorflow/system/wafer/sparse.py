"""What sparse weights would save on the wafer: multiplications by zero, and zeros on the links.

A core computes only when data arrives, and no data is sent for a zero (Hot Chips 34). No measurement of a sparse
training step on a CS-2 is published, so the result is a bound. facts.SPARSE_SKIP is the share of skipped work.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from cerebras_tensorflow.system import facts
from cerebras_tensorflow.system.wafer.layers import MATRIX_PRODUCT, Layer, Network


def sparse_network(network: Network, masked: Mapping[str, float]) -> Network:
    """Return a network whose layers do without the work of masked weights.

    Args:
        network: The dense network.
        masked: Name of each sparse weight -> number of its elements that are zero. The layer's name is a prefix of
            the names of its weights.
    """
    return replace(network, layers=tuple(_sparse_layer(layer, masked) for layer in network.layers))


def _sparse_layer(layer: Layer, masked: Mapping[str, float]) -> Layer:
    if layer.kind != MATRIX_PRODUCT or not layer.num_weights:
        return layer
    zeros = sum(count for name, count in masked.items() if name.startswith(f"{layer.name}/"))
    share = min(1.0, zeros / layer.num_weights)
    work = 1 - share * facts.SPARSE_SKIP.value
    moved = min(1.0, (1 - share) * facts.SPARSE_WEIGHT_BYTES.value)
    return replace(
        layer,
        flops=layer.flops * work,
        forward_flops=layer.forward_flops * work,
        weight_bytes=int(layer.weight_bytes * moved),
        gradient_bytes=int(layer.gradient_bytes * moved),
    )
