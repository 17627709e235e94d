"""The section `sparsity`: published keys and defaults, and errors that say what is wrong."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from cerebras_tensorflow.errors import SettingsError
from cerebras_tensorflow.sparsity import GMP, SET, RigL, SparsityAlgorithm, Static, configure

SHAPES = {
    "fc1/kernel": (8, 8),
    "fc1/bias": (8,),
    "fc2/kernel": (8, 4),
    "layer_norm/kernel": (8, 8),
    "lm_head/w": (8, 8),
}


def chosen(config: Any) -> dict[str, SparsityAlgorithm]:
    groups = configure(config)
    assert groups is not None
    return groups.choose(SHAPES)


def test_a_number_is_static_and_leaves_vectors_norms_and_heads_dense() -> None:
    found = chosen(0.75)
    assert set(found) == {"fc1/kernel", "fc2/kernel"}
    assert all(type(each) is Static and each.target(0) == np.float32(0.75) for each in found.values())
    assert configure(None) is None


@pytest.mark.parametrize(
    "config, kind, names",
    [
        ({"algorithm": "rigl", "sparsity": 0.5, "param_filter": "fc1/*"}, RigL, {"fc1/kernel", "fc1/bias"}),
        ({"algorithm": "SET", "sparsity": 0.5, "param_filter": ["*2/k*"]}, SET, {"fc2/kernel"}),
        ({"type": "sideband", "sparsity": 0.5, "param_name_patterns": "kernel$"}, Static,
         {"fc1/kernel", "fc2/kernel", "layer_norm/kernel"}),
        ({"type": "gmp", "schedule": [0.1, 0.2], "update": {"freq": 5, "stop": "none"}}, GMP,
         {"fc1/kernel", "fc2/kernel"}),
        ({"type": "rigl", "sparsity": 0.5, "schedule": {"freq": 3, "start": 0, "stop": 9}}, RigL,
         {"fc1/kernel", "fc2/kernel"}),
        ({"init_method": "from_zeros", "dump_masks": True}, Static, {"fc1/kernel", "fc2/kernel"}),
        ({"groups": [{"params": {"sparsity": 0.5}}]}, Static, {"fc1/kernel", "fc2/kernel"}),
    ],
)  # fmt: skip
def test_the_keys_of_all_releases(config: Any, kind: type, names: set[str]) -> None:
    found = chosen(config)
    assert set(found) == names
    assert {type(each) for each in found.values()} == {kind}


def test_the_first_group_that_matches_wins() -> None:
    found = chosen([{"sparsity": 0.25, "param_filter": "fc1/kernel"}, {"sparsity": 0.5}])
    assert {name: float(each.target(0)) for name, each in found.items()} == {"fc1/kernel": 0.25, "fc2/kernel": 0.5}
    found = chosen(
        {"init_method": "topk", "param_name_patterns": {"fc1/k": {"sparsity": 0.25}, "fc2": {"sparsity": 0}}}
    )
    assert {name: float(each.target(0)) for name, each in found.items()} == {"fc1/kernel": 0.25, "fc2/kernel": 0.0}


@pytest.mark.parametrize(
    "config, words",
    [
        (1.0, r"sparsity is 1; expected a number in \[0, 1\)"),
        (float("nan"), r"in \[0, 1\)"),
        ("0.5", r"sparsity is '0.5'"),
        ([], "empty list"),
        ({}, "sparsity is missing"),
        ({"algorithm": "set", "init_method": "from_zeros"}, "sparsity is missing.* Only static"),
        ({"sparsity": 0.5, "out_groups": 2, "init_method": "checkerboard"}, "'checkerboard' does not make out_groups"),
        ({"sparsity": 0.5, "in_groups": 2, "init_method": lambda w, s: w > s}, "does not make in_groups"),
        ({"algorithm": "rigl", "sparsity": 0.5, "balance_in_groups": 2, "init_method": "balanced-topk"},
         "'balanced-topk' does not make in_groups"),
        ({"algorithm": "rigle", "sparsity": 0.5}, "unknown sparsity algorithm 'rigle'; did you mean 'rigl'?"),
        ({"sparsty": 0.5}, "unknown key 'sparsty' in section sparsity; did you mean 'sparsity'?"),
        ({"sparsity": 0.5, "drop_fraction": 0.1}, r"'drop_fraction' .* static does not take it.* algorithm to .*rigl"),
        ({"algorithm": "rigl", "sparsity": 0.5, "drop_fraction": 1.5}, r"drop_fraction is 1.5; .* \[0, 1\]"),
        ({"sparsity": 0.5, "init_method": "topq"}, "unknown init_method 'topq'; did you mean 'topk'?"),
        ({"algorithm": "set", "sparsity": 0.5, "update": {"start": 9, "stop": 5}}, "ends before it begins: start is 9"),
        ({"algorithm": "set", "sparsity": 0.5, "update": {"freq": 0}}, "update.freq is 0; expected .* 1 or more"),
        ({"algorithm": "set", "sparsity": 0.5, "update": {"frequency": 1}}, "unknown key 'frequency' in update"),
        ({"algorithm": "gmp", "sparsity": 0.5}, "algorithm: static"),
        ({"algorithm": "gmp", "sparsity": {"type": "cosin", "init": 1}}, "did you mean 'cosine'?"),
        ({"algorithm": "gmp", "sparsity": {"type": "linear", "init": 0, "slop": 1}}, "did you mean 'slope'?"),
        ({"algorithm": "gmp", "sparsity": {"type": "linear", "init": 0}}, "sparsity lacks slope"),
        ({"algorithm": "gmp", "sparsity": [0.5, 1.0]}, r"sparsity is 1; .* \[0, 1\)"),
        ({"sparsity": 0.5, "schedule": 0.5}, "schedule and sparsity; keep sparsity"),
        ({"sparsity": 0.5, "in_groups": 3, "param_filter": "fc1/kernel"}, "3, which does not divide fc1/kernel"),
        ({"sparsity": 0.5, "param_filter": "no*"}, "param_filter 'no\\*' matches no weight .* fc1/kernel, fc1/bias"),
        ({"sparsity": 0.5, "param_name_patterns": "("}, "expected regular expressions"),
    ],
)  # fmt: skip
def test_errors_name_the_key_and_what_was_expected(config: Any, words: str) -> None:
    with pytest.raises(SettingsError, match=words.replace("?", r"\?") if "did you" in words else words):
        chosen(config)


@pytest.mark.parametrize(
    "update, last_step, end",
    [
        ({"freq": 2}, 100, 100),
        ({"freq": 3, "start": 1, "stop": 50}, 100, 49),
        ({"freq": 3, "start": 1, "stop": 48}, 100, 46),
        ({"freq": 3, "start": 1}, 0, None),
        ({"steps": [2, 60, 200]}, 100, 60),
        ({"steps": [200]}, 100, None),
    ],
)
def test_a_schedule_must_stay_below_1_at_its_last_update(update: Any, last_step: int, end: int | None) -> None:
    def rising_to(level: float) -> SparsityAlgorithm:
        slope = level / (end or 1)
        return GMP({"type": "linear", "init": 0.0, "slope": slope}, update=update)

    rising_to(0.99).check_end("fc1/kernel", last_step)
    if end is not None:
        with pytest.raises(SettingsError, match=rf"reaches 1 by step {end}, so all of fc1/kernel would be zero"):
            rising_to(1.01).check_end("fc1/kernel", last_step)
