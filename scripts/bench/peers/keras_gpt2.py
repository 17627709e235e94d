"""Keras 3 on TensorFlow with layers of the same shape, without XLA; the system swaps what does not fit."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

os.environ["KERAS_BACKEND"] = "tensorflow"
import keras
import numpy as np
from keras import layers
from peers.shape import LEARNING_RATE, Work, batch, measure, sync, work


class Block(layers.Layer):
    """One layer of GPT-2: attention and feed-forward, each with a norm before it."""

    def __init__(self, one: Work, **settings: Any) -> None:
        super().__init__(**settings)
        self.first, self.second = layers.LayerNormalization(), layers.LayerNormalization()
        self.attention = layers.MultiHeadAttention(one.heads, one.hidden // one.heads)
        self.wide = layers.Dense(4 * one.hidden, activation=lambda x: keras.activations.gelu(x, approximate=True))
        self.narrow = layers.Dense(one.hidden)

    def build(self, shape: Any) -> None:
        """Make the weights."""
        self.first.build(shape)
        self.second.build(shape)
        self.attention.build(shape, shape)
        self.wide.build(shape)
        self.narrow.build((*shape[:-1], self.wide.units))
        self.built = True

    def call(self, x: Any) -> Any:
        """Return the layer's output: (batch, sequence, hidden)."""
        normed = self.first(x)
        x = x + self.attention(normed, normed, use_causal_mask=True)
        return x + self.narrow(self.wide(self.second(x)))


def layers_of(one: Work) -> Any:
    """Return the model."""
    words = layers.Embedding(one.vocabulary, one.hidden)
    places = layers.Embedding(max(1024, one.sequence), one.hidden)
    ids = keras.Input((one.sequence,), dtype="int32")
    x = words(ids) + places(np.arange(one.sequence)[None])
    for _ in range(one.layers):
        x = Block(one)(x)
    x = layers.LayerNormalization()(x)
    logits = keras.ops.matmul(x, keras.ops.transpose(words.embeddings))
    return keras.Model(ids, logits)


def build(one: Work) -> Any:
    """Return the compiled model."""
    model = layers_of(one)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(LEARNING_RATE), loss, jit_compile=False)
    return model


def main() -> None:
    """Run the part of the benchmark that the command line asks for."""
    one = work()
    keras.utils.set_random_seed(1)
    path = Path(f"{one.state}.weights.h5")
    model = build(one)
    if one.what == "resume":
        model.optimizer.build(model.trainable_variables)
        model.load_weights(path)
    ids = batch(one)
    labels = np.roll(ids, -1, 1)

    def step() -> float:
        return float(model.train_on_batch(ids, labels))

    def save() -> None:
        model.save_weights(path)
        sync(path)

    measure(one, step, save)


if __name__ == "__main__":
    main()
