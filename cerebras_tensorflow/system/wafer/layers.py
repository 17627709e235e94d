"""What the wafer computes: a list of layers, each with its operations, weights and activations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

MATRIX_PRODUCT, ATTENTION, NORM, EMBEDDING, LOSS, OTHER = (
    "matrix product",
    "attention",
    "norm",
    "embedding",
    "loss",
    "other",
)
KINDS = (MATRIX_PRODUCT, ATTENTION, NORM, EMBEDDING, LOSS, OTHER)


@dataclass(frozen=True)
class Layer:
    """One layer of a step. Figures are for one sample, except those of the weights.

    Attributes:
        name: Its scopes in the graph, such as "encoder/ffn_3/dense_layer".
        kind: One of KINDS.
        flops: Floating-point operations, forward and backward.
        forward_flops: Floating-point operations of the forward pass; part of `flops`.
        rows: Vectors that the weights are multiplied with, such as the tokens of a sample.
        input_elements: Elements that enter. Training keeps them until the backward pass.
        output_elements: Elements that leave.
        moved_elements: Elements that all ops of the layer read and write, forward and backward.
        num_weights: Elements of the weights that the layer uses.
        num_own_weights: Those that no earlier layer uses.
        weight_bytes: Bytes of the weights on their way to the wafer.
        gradient_bytes: Bytes of their gradients on the way back; 0 if the weights are not trained.
        is_gathered: Whether only some rows of the weights are read, as in an embedding.
        input_features, output_features: Elements of a row that enter and leave a matrix product; 0: unknown, or none.
        block: The part of the model that it belongs to, such as "encoder/ffn_3".
        shape: Shape of its output, as text for people; "" if unknown.
    """

    name: str
    kind: str
    flops: float = 0.0
    forward_flops: float = 0.0
    rows: float = 1.0
    input_elements: float = 0.0
    output_elements: float = 0.0
    moved_elements: float = 0.0
    num_weights: int = 0
    num_own_weights: int = 0
    weight_bytes: int = 0
    gradient_bytes: int = 0
    is_gathered: bool = False
    input_features: float = 0.0
    output_features: float = 0.0
    block: str = ""
    shape: str = ""


@dataclass(frozen=True)
class Network:
    """The layers of a step, in the order of the forward pass.

    Attributes:
        layers: The layers.
        is_training: Whether there is a backward pass.
        sample_bytes: Bytes of one sample of the input.
        slots: Values that the optimizer keeps for each weight.
        sparsity: Share of zeros of each sparse weight, by its name, at the last change of its mask.
        unknown_loops: Loops whose length the graph does not tell; the figures count them once.
    """

    layers: tuple[Layer, ...]
    is_training: bool
    sample_bytes: float
    slots: float = 2.0
    sparsity: Mapping[str, float] = field(default_factory=dict)
    unknown_loops: tuple[str, ...] = ()

    @cached_property
    def flops(self) -> float:
        """Floating-point operations for one sample."""
        return sum(layer.flops for layer in self.layers)

    @cached_property
    def num_weights(self) -> int:
        """Elements of all weights."""
        return sum(layer.num_own_weights for layer in self.layers)


def blocks(layers: Sequence[Layer]) -> dict[str, list[Layer]]:
    """Return the layers of each block, in order."""
    result: dict[str, list[Layer]] = {}
    for layer in layers:
        result.setdefault(layer.block or layer.name, []).append(layer)
    return result
