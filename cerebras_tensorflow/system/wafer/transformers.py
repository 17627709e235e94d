"""Layers of published models, written from their shapes alone, without a graph."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

from cerebras_tensorflow.system.wafer.layers import (
    ATTENTION,
    EMBEDDING,
    LOSS,
    MATRIX_PRODUCT,
    NORM,
    Layer,
    Network,
)

_WEIGHT_BYTES = 4  # on the wire, as the variables are kept
_MOVES = 6  # elements read and written for each element of an activation, forward and backward


@dataclass(frozen=True)
class Transformer:
    """The shape of a transformer.

    Attributes:
        hidden, blocks, heads, filter: Sizes of its blocks.
        vocabulary: Words in the embedding and in the output layer.
        sequence: Tokens of a sample.
        predictions: Tokens whose words the output layer predicts. None: all.
        is_gated: Whether the feed-forward part has a third product, as in Llama.
    """

    hidden: int
    blocks: int
    heads: int
    filter: int
    vocabulary: int
    sequence: int
    predictions: int | None = None
    is_gated: bool = False

    def network(self) -> Network:
        """Return the layers of a training step."""
        layers = [self._embedding()]
        for number in range(self.blocks):
            layers += self._block(f"block_{number}")
        layers += [self._norm("norm", "head"), self._product("output", "head", self.hidden, self.vocabulary)]
        words = float(self._predicted * self.vocabulary)
        layers.append(
            Layer("loss", LOSS, input_elements=words, output_elements=1, moved_elements=_MOVES * words, block="head")
        )
        return Network(tuple(layers), True, 3.0 * 4 * self.sequence)

    @property
    def _predicted(self) -> int:
        return self.sequence if self.predictions is None else self.predictions

    def _embedding(self) -> Layer:
        count = self.vocabulary * self.hidden
        size = float(self.sequence * self.hidden)
        return Layer(
            "embedding",
            EMBEDDING,
            rows=self.sequence,
            input_elements=self.sequence,
            output_elements=size,
            moved_elements=_MOVES * size,
            num_weights=count,
            num_own_weights=count,
            weight_bytes=_WEIGHT_BYTES * count,
            gradient_bytes=_WEIGHT_BYTES * count,
            is_gathered=True,
            block="embedding",
        )

    def _block(self, name: str) -> list[Layer]:
        hidden, wide = self.hidden, self.filter
        layers = [self._norm(f"{name}/norm_1", name)]
        layers += [self._product(f"{name}/{part}", name, hidden, hidden) for part in ("query", "key", "value")]
        size = float(self.sequence * hidden)
        scores = 4.0 * self.sequence * size  # two products of sequence x sequence x hidden
        layers.append(
            Layer(
                f"{name}/attention",
                ATTENTION,
                flops=3 * scores,
                forward_flops=scores,
                input_elements=3 * size,
                output_elements=size,
                moved_elements=_MOVES * self.heads * float(self.sequence) ** 2,
                block=name,
            )
        )
        layers += [self._product(f"{name}/output", name, hidden, hidden), self._norm(f"{name}/norm_2", name)]
        layers += [self._product(f"{name}/up", name, hidden, wide)]
        layers += [self._product(f"{name}/gate", name, hidden, wide)] if self.is_gated else []
        return [*layers, self._product(f"{name}/down", name, wide, hidden)]

    def _product(self, name: str, block: str, inputs: int, outputs: int) -> Layer:
        rows = self._predicted if name == "output" else self.sequence
        forward = 2.0 * rows * inputs * outputs
        count = inputs * outputs
        return Layer(
            name,
            MATRIX_PRODUCT,
            flops=3 * forward,
            forward_flops=forward,
            rows=rows,
            input_elements=float(rows * inputs),
            output_elements=float(rows * outputs),
            moved_elements=_MOVES * float(rows * (inputs + outputs)),
            num_weights=count,
            num_own_weights=count,
            weight_bytes=_WEIGHT_BYTES * count,
            gradient_bytes=_WEIGHT_BYTES * count,
            input_features=inputs,
            output_features=outputs,
            block=block,
        )

    def _norm(self, name: str, block: str) -> Layer:
        size = float(self.sequence * self.hidden)
        return Layer(
            name,
            NORM,
            input_elements=size,
            output_elements=size,
            moved_elements=2 * _MOVES * size,
            num_weights=2 * self.hidden,
            num_own_weights=2 * self.hidden,
            weight_bytes=2 * _WEIGHT_BYTES * self.hidden,
            gradient_bytes=2 * _WEIGHT_BYTES * self.hidden,
            block=block,
        )


def dense_layers(sizes: tuple[int, ...]) -> Network:
    """Return a training step of a network of dense layers, such as fc_mnist.

    Args:
        sizes: Width of the input, of each hidden layer and of the output.
    """
    layers = []
    for number, (inputs, outputs) in enumerate(itertools.pairwise(sizes)):
        forward, count = 2.0 * inputs * outputs, inputs * outputs
        layers.append(
            Layer(
                f"dense_{number}",
                MATRIX_PRODUCT,
                flops=3 * forward,
                forward_flops=forward,
                input_elements=inputs,
                output_elements=outputs,
                moved_elements=_MOVES * float(inputs + outputs),
                num_weights=count,
                num_own_weights=count,
                weight_bytes=_WEIGHT_BYTES * count,
                gradient_bytes=_WEIGHT_BYTES * count,
                input_features=inputs,
                output_features=outputs,
                block=f"dense_{number}",
            )
        )
    layers.append(Layer("loss", LOSS, input_elements=sizes[-1], output_elements=1, moved_elements=_MOVES * sizes[-1]))
    return Network(tuple(layers), True, 2.0 * sizes[0])


BERT_LARGE = Transformer(1024, 24, 16, 4096, 30522, 128, predictions=20)
GPTJ_6B = Transformer(4096, 28, 16, 16384, 50400, 2048)
LLAMA_7B = Transformer(4096, 32, 32, 11008, 32000, 2048, is_gated=True)
GENSLM_1_3B = Transformer(2048, 24, 16, 8192, 72, 10240)
FC_MNIST = (784, 50, 50, 50, 50, 50, 50, 50, 50, 50, 50, 10)
