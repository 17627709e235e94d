"""Masks: the published counts and formulas, checked by hand and against the words of the papers."""

from __future__ import annotations

import math
import tracemalloc

import numpy as np
import pytest

from cerebras_tensorflow.sparsity import GMP, SET, RigL, Static
from cerebras_tensorflow.sparsity.schedules import read_schedule, read_update_steps
from cerebras_tensorflow.sparsity.selection import Balance, keep_largest, num_kept, top_k

WEIGHT = np.random.default_rng(0).normal(size=(16, 32)).astype(np.float32)


def test_counts_are_those_of_float32() -> None:
    assert num_kept(10, 0.9) == 1  # float64 would give 0
    assert [num_kept(512, level) for level in (0, 0.5, 0.75, 0.999)] == [512, 256, 128, 0]


def test_of_equal_scores_the_first_ones_win() -> None:
    np.testing.assert_array_equal(top_k(np.array([[1, 3, 1, 1]]), 3), [[True, True, True, False]])
    np.testing.assert_array_equal(top_k(np.array([[1.0, np.nan]]), 1), [[False, True]])


def test_balanced_choices_keep_as_many_in_each_group() -> None:
    outputs = keep_largest(np.abs(WEIGHT), 0.75, Balance(-1, 8)).reshape(16, 8, 4)
    assert set(outputs.sum(axis=(0, 2))) == {16}
    inputs = keep_largest(np.abs(WEIGHT), 0.75, Balance(-2, 4)).reshape(4, 4, 32)
    assert set(inputs.sum(axis=(1, 2))) == {32}


@pytest.mark.parametrize("method", ["random", "topk", "balanced-topk", "checkerboard"])
def test_first_masks_have_the_target_sparsity(method: str) -> None:
    mask = Static(0.75, init_method=method).first_mask("w", WEIGHT, seed=1)
    assert mask.sum() == 128
    np.testing.assert_array_equal(mask, Static(0.75, init_method=method).first_mask("w", WEIGHT, seed=1))
    if method == "topk":
        assert np.abs(WEIGHT[mask]).min() >= np.abs(WEIGHT[~mask]).max()
    if method == "balanced-topk":
        assert mask.sum(axis=0).max() <= 4
    if method == "random":
        assert (mask != Static(0.75, seed=2).first_mask("w", WEIGHT, seed=1)).any()


def test_the_rows_of_a_checkerboard_wrap_as_in_the_published_package() -> None:
    mask = Static(0.7, init_method="checkerboard").first_mask("w", np.ones((32, 16), np.float32))
    rows = ["".join("x" if stays else "." for stays in row) for row in mask[17:21]]
    assert rows == ["..x..x..x...x..x", "..x..x...x..x...", "..x...x..x.....x", "...x..x.....x..x"]  # of release 2.6
    assert mask.sum() == 152


@pytest.mark.parametrize("sparsity", [0.999, 0.99999, 1 - 2**-24])
def test_a_checkerboard_takes_the_memory_of_its_weight_at_a_share_near_1(sparsity: float) -> None:
    algorithm = Static(sparsity, init_method="checkerboard")
    weight = np.ones((8, 50_257), np.float32)
    tracemalloc.start()
    try:
        mask = algorithm.first_mask("w", weight)
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak_bytes < 16 * weight.nbytes
    places = np.arange(50_257, dtype=np.float32) * np.float32(1 - float(np.float32(sparsity)))
    np.testing.assert_array_equal(mask[0, :-1], np.diff(np.floor(places + np.float32(1e-5))) != 0)
    assert abs(int(mask.sum()) - round((1 - sparsity) * weight.size)) <= 8


def test_a_checkerboard_of_a_schedule_that_has_reached_1_keeps_nothing() -> None:
    algorithm = GMP({"type": "linear", "init": 0.5, "slope": 0.25}, init_method="checkerboard")
    assert not algorithm.first_mask("w", WEIGHT, step=9).any()


@pytest.mark.parametrize("slope, num_replaced", [(0.5, 128), (-0.5, 0)])
@pytest.mark.parametrize("method", [SET, RigL])
def test_a_drop_fraction_that_leaves_0_to_1_keeps_the_sparsity(method: type, slope: float, num_replaced: int) -> None:
    algorithm = method(0.75, drop_fraction={"type": "linear", "init": 0.3, "slope": slope})
    mask = algorithm.first_mask("w", WEIGHT)
    new = algorithm.next_mask("w", WEIGHT * mask, mask, 9, np.where(mask, 0, np.abs(WEIGHT) + 1))
    assert new.sum() == 128
    if method is RigL:
        assert (new & ~mask).sum() == num_replaced


def test_from_zeros_takes_the_zeros() -> None:
    weight = np.where(WEIGHT > 0, WEIGHT, 0)
    np.testing.assert_array_equal(Static(init_method="from_zeros").first_mask("w", weight), WEIGHT > 0)


def test_rigl_drops_the_smallest_and_grows_the_steepest() -> None:
    """Evci et al. (2020), Algorithm 1: drop f of the weights by |w|, grow as many by |gradient|."""
    algorithm = RigL(0.75, drop_fraction=0.25)
    mask = algorithm.first_mask("w", WEIGHT)
    gradient = np.random.default_rng(1).normal(size=WEIGHT.shape).astype(np.float32)
    held = WEIGHT * mask
    new = algorithm.next_mask("w", held, mask, 1, gradient)
    kept = np.argsort(-np.abs(held).ravel())[:96]
    left = np.setdiff1d(np.arange(WEIGHT.size), kept)
    grown = left[np.argsort(-np.abs(gradient).ravel()[left])[:32]]
    assert set(np.flatnonzero(new)) == {*kept, *grown}


def test_set_grows_at_random_and_gmp_only_prunes() -> None:
    one = SET(0.75, drop_fraction=0.25)
    mask = one.first_mask("w", WEIGHT)
    first, second = (one.next_mask("w", WEIGHT * mask, mask, step) for step in (1, 2))
    assert first.sum() == second.sum() == 128
    assert (first != second).any()
    gmp = GMP({"type": "linear", "init": 0.25, "slope": 0.125})
    masks = [gmp.next_mask("w", WEIGHT, mask, step) for step in (1, 2)]
    assert [each.sum() for each in masks] == [320, 256]
    assert not (masks[1] & ~masks[0]).any()


@pytest.mark.parametrize(
    "schedule, step, expected",
    [
        (0.5, 7, 0.5),
        ({"type": "linear", "init": 0.1, "slope": 0.01}, 5, 0.15),
        ({"type": "exp", "init": 0.2, "gamma": -0.1}, 5, 1 - 0.8 * math.exp(-0.5)),
        ({"type": "exponential", "init": 0.2, "gamma": -0.1, "final": 0.5}, 5, 0.5 - 0.3 * math.exp(-0.5)),
        ({"type": "power", "init": 0.5, "beta": 0.9}, 3, 0.5 * 0.9**3),
        ({"type": "cosine", "init": 0.3, "half_period": 10}, 5, 0.15),
        ({"type": "cosine", "init": 0.3, "half_period": 10, "minimum": 0.1}, 10, 0.1),
    ],
)
def test_schedules_follow_their_formulas(schedule: object, step: int, expected: float) -> None:
    assert read_schedule("sparsity", schedule, 1.0).at(step) == pytest.approx(expected, rel=1e-6)


def test_a_list_moves_on_at_each_update() -> None:
    schedule, update = (
        read_schedule("sparsity", [0.1, 0.2, 0.3], 1.0),
        read_update_steps({"freq": 5, "start": 5, "stop": 21}),
    )
    steps = [step for step in range(30) if step in update]
    assert steps == [5, 10, 15, 20]
    assert [round(float(schedule.at(step, update.num_before(step))), 3) for step in steps] == [0.1, 0.2, 0.3, 0.1]
    assert 3 in read_update_steps({"steps": [3, 1]})
    assert all(step in read_update_steps(None) for step in range(3))
