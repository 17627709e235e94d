"""Shared by the comparisons with other implementations: runs our model with random weights."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import tensorflow as tf


@dataclass
class Ours:
    """One of our models with random weights."""

    weights: dict[str, np.ndarray]
    values: list[np.ndarray]
    gradients: dict[str, np.ndarray]  # empty unless a loss was asked for


@pytest.fixture
def run_ours() -> Callable[..., Ours]:
    """Builds a model, draws every weight wide enough that each part shows in the output, and runs it."""

    def run(build: Callable[[], list[Any]], has_loss: bool = False, seed: int = 11, spread: float = 0.05) -> Ours:
        """With `has_loss`, the last output of `build` is the loss."""
        rng = np.random.default_rng(seed)
        with tf.Graph().as_default(), tf.compat.v1.Session() as session:
            outputs = build()
            variables = {variable.op.name: variable for variable in tf.compat.v1.trainable_variables()}
            weights = {}
            for name, variable in variables.items():
                middle = 1.0 if name.endswith("gamma") else 0.0
                weights[name] = rng.normal(middle, spread, variable.shape.as_list()).astype(np.float32)
            gradients: dict[str, Any] = {}
            if has_loss:
                computed = tf.gradients(outputs[-1], list(variables.values()))
                gradients = {
                    name: tf.convert_to_tensor(gradient)
                    for name, gradient in zip(variables, computed, strict=True)
                    if gradient is not None
                }
            for name, variable in variables.items():
                variable.load(weights[name], session)
            values, gradients = session.run([outputs, gradients])
        return Ours(weights=weights, values=list(values), gradients=gradients)

    return run
