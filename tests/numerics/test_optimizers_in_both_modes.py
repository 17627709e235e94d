"""Every optimizer and training setting of params.yaml gives the same bits in pipelined and weight-streaming mode."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from reference_implementations.common.optimizers.make import training_step
from reference_implementations.common.sections import OptimizerSettings
from tests.numerics.streaming import assert_same_bits, build, train, transformer_loss

WARM_UP: Any = (
    {"scheduler": "Linear", "steps": 2, "initial_learning_rate": 0.0, "end_learning_rate": 1e-2},
    {"scheduler": "Cosine", "decay_steps": 6, "initial_learning_rate": 1e-2, "alpha": 0.1},
)
POLYNOMIAL: Any = {
    "scheduler": "Polynomial", "steps": 8, "initial_learning_rate": 1e-2, "end_learning_rate": 1e-3, "power": 2.0,
}  # fmt: skip
PIECEWISE: Any = {"scheduler": "PiecewiseConstant", "values": [1e-2, 1e-3], "boundaries": [4]}

SETTINGS = {
    "sgd, polynomial": OptimizerSettings(optimizer_type="sgd", learning_rate=POLYNOMIAL),
    "momentum, piecewise": OptimizerSettings(optimizer_type="momentum", learning_rate=PIECEWISE, use_nesterov=True),
    "adam, clipped to a value": OptimizerSettings(optimizer_type="adam", learning_rate=1e-2, max_gradient_value=1e-3),
    "adamw, warm-up, clipped": OptimizerSettings(
        learning_rate=WARM_UP, weight_decay_rate=0.1, exclude_from_weight_decay=("gain",), max_gradient_norm=0.5
    ),
    "lamb": OptimizerSettings(optimizer_type="lamb", learning_rate=1e-2, weight_decay_rate=0.1),
    "adafactor": OptimizerSettings(optimizer_type="adafactor", learning_rate=1e-2),
    "accumulated": OptimizerSettings(learning_rate=1e-2, grad_accum_steps=3, max_gradient_norm=0.5),
    "scaled": OptimizerSettings(learning_rate=1e-2, loss_scaling_factor=128.0),
    "dynamic": OptimizerSettings(
        optimizer_type="adam", learning_rate=1e-2, loss_scaling_factor="dynamic", steps_per_increase=3
    ),
    "dynamic, accumulated": OptimizerSettings(
        optimizer_type="lamb", learning_rate=1e-2, loss_scaling_factor="dynamic", grad_accum_steps=2
    ),
}
LONG = ("adamw, warm-up, clipped", "lamb", "adafactor")


def minimized(settings: OptimizerSettings, loss: Any, _step: Any) -> Any:
    return training_step(loss, settings)


@pytest.mark.parametrize("name", SETTINGS)
def test_both_modes_agree_in_every_bit(name: str, tmp_path: Path) -> None:
    steps = 50 if name in LONG else 9
    result = assert_same_bits(build(partial(minimized, SETTINGS[name])), tmp_path, steps)
    assert {"embedding", "layer_0/qkv", "layer_2/down"} <= {spec.name for spec in result.program.streamed}
    assert not result.program.notes
    updates = steps // SETTINGS[name].grad_accum_steps
    assert result.variables["global_step"] == updates


def test_the_loss_scale_rises_after_good_steps() -> None:
    settings = OptimizerSettings(
        optimizer_type="sgd",
        learning_rate=1e-3,
        loss_scaling_factor="dynamic",
        initial_loss_scale=4.0,
        max_loss_scale=16.0,
        steps_per_increase=2,
    )
    result = train(build(partial(minimized, settings)), "weight_streaming", 7)
    assert result.variables["current_loss_scale"] == 16.0  # 4, 8 after two steps, 16 after four, and no further


def test_a_step_that_overflows_changes_no_weight_and_halves_the_loss_scale() -> None:
    def overflowing(ids: Any, labels: Any) -> Any:
        return transformer_loss(ids, labels) * 1e30

    settings = OptimizerSettings(learning_rate=1e-2, loss_scaling_factor="dynamic")
    built = build(partial(minimized, settings), overflowing)
    for mode in ("pipelined", "weight_streaming"):
        result = train(built, mode, 2)
        changed = {name for name, value in result.variables.items() if not np.array_equal(value, built.values[name])}
        assert changed == {"global_step", "current_loss_scale"}
        assert result.variables["current_loss_scale"] == 2.0**13
