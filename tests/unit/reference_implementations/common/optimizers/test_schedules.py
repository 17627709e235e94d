"""Learning rates over the steps of a run, against their closed forms."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from cerebras_tensorflow.errors import SettingsError
from reference_implementations.common.optimizers.schedules import learning_rate_tensor


def rates(setting: Any, steps: list[int]) -> np.ndarray:
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        step = tf.compat.v1.placeholder(tf.int64, [])
        rate = learning_rate_tensor(setting, step)
        return np.array([session.run(rate, {step: value}) for value in steps])


@pytest.mark.parametrize(
    ("setting", "steps", "expected"),
    [
        (0.5, [0, 10], [0.5, 0.5]),
        ({"scheduler": "Constant", "learning_rate": 0.5}, [0, 10], [0.5, 0.5]),
        (
            {"scheduler": "Linear", "steps": 10, "initial_learning_rate": 1.0, "end_learning_rate": 0.0},
            [0, 5, 10, 99],
            [1.0, 0.5, 0.0, 0.0],
        ),
        (
            {"scheduler": "Polynomial", "decay_steps": 10, "initial_learning_rate": 1.0, "power": 2.0},
            [0, 5, 20],
            [1.0, 0.25, 0.0],
        ),
        (
            {"scheduler": "Cosine", "decay_steps": 8, "initial_learning_rate": 2.0, "alpha": 0.1},
            [0, 2, 4, 8, 9],
            [2.0, 2.0 * (0.45 * (1 + math.cos(math.pi / 4)) + 0.1), 1.1, 0.2, 0.2],
        ),
        (
            {"scheduler": "Exponential", "decay_steps": 10, "initial_learning_rate": 1.0, "decay_rate": 0.5},
            [0, 10, 30],
            [1.0, 0.5, 0.125],
        ),
        ({"scheduler": "PiecewiseConstant", "values": [3.0, 2.0, 1.0], "boundaries": [2, 4]}, [0, 2, 5], [3, 2, 1]),
        (
            [
                {"scheduler": "Linear", "steps": 4, "initial_learning_rate": 0.0, "end_learning_rate": 1.0},
                {"scheduler": "Cosine", "decay_steps": 4, "initial_learning_rate": 1.0},
            ],
            [0, 2, 4, 6, 8],
            [0.0, 0.5, 1.0, 0.5, 0.0],
        ),
    ],
)
def test_a_schedule_follows_its_formula(setting: Any, steps: list[int], expected: list[float]) -> None:
    np.testing.assert_allclose(rates(setting, steps), expected, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ([], "empty list"),
        ({"scheduler": "Cosine", "initial_learning_rate": 1.0}, "needs steps"),
        ({"scheduler": "Linear", "steps": 3}, "needs initial_learning_rate"),
        ({"scheduler": "Warp"}, "'scheduler' is 'Warp'; expected one of"),
        ({"scheduler": "PiecewiseConstant", "values": [1.0], "boundaries": [5]}, "one value more than boundaries"),
        (
            [{"scheduler": "Constant", "learning_rate": 1.0}, {"scheduler": "Constant", "learning_rate": 1.0}],
            "not the last",
        ),
    ],
)
def test_an_incomplete_schedule_is_refused(setting: Any, message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        rates(setting, [0])
