"""Which arguments a user's function is called with."""

from __future__ import annotations

import functools
from typing import Any

from cerebras_tensorflow.estimator.user_functions import call_with, parameters_of


def listed(**words: Any) -> dict[str, Any]:
    return words


def test_a_partial_keeps_the_values_that_it_was_given() -> None:
    offered = {"params": 1, "mode": "train"}
    assert call_with(functools.partial(listed, params=5), offered) == {"params": 5, "mode": "train"}
    assert "a" not in parameters_of(functools.partial(lambda a, b: None, a=1))


def test_positional_variable_arguments_are_no_parameter() -> None:
    assert parameters_of(lambda features, *rest: None) == {"features"}
