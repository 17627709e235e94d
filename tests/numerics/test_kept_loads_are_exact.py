"""An update soon after the last use of a weight takes the load of that use: the weight is not read again."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.numerics.streaming import assert_same_bits, build
from tests.numerics.test_weight_streaming_is_exact import adam, decoupled_decay


@pytest.mark.parametrize("window_bytes", [1, 40_000, 10_000_000])
def test_updates_near_the_backward_pass_do_not_read_their_weight_again(window_bytes: int, tmp_path: Path) -> None:
    program = assert_same_bits(build(adam), tmp_path, steps=5, window_bytes=window_bytes).program
    name = {index: spec.name for index, spec in enumerate(program.stored)}
    replaced = {name[event.weight] for event in program.events if event.kind == "replace"}
    updated = {name[event.weight] for event in program.events if event.kind == "update"}
    assert {"layer_0/qkv", "layer_2/down"} <= replaced
    assert {"layer_0/qkv/Adam", "layer_2/down/Adam_1"} <= updated
    assert not replaced & updated
    assert ("embedding" in updated) == (window_bytes < 10_000_000), "its update comes at the end of the backward pass"


def test_updates_made_of_assigns_do_not_read_their_weight_again(tmp_path: Path) -> None:
    program = assert_same_bits(build(decoupled_decay), tmp_path, steps=5).program
    name = {index: spec.name for index, spec in enumerate(program.stored)}
    replaced = {name[event.weight] for event in program.events if event.kind == "replace"}
    assert {"layer_0/qkv", "layer_2/down"} <= replaced
    assert not {"layer_0/qkv/m", "layer_2/down/v"} & replaced
