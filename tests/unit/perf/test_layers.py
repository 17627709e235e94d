"""Which layer is computed when."""

from __future__ import annotations

import pytest

from cerebras_tensorflow.graph.scopes import layer_of
from cerebras_tensorflow.perf.layers import layer_spans, short_names
from cerebras_tensorflow.perf.timeline import Span


@pytest.mark.parametrize(
    ("op", "layer"),
    [
        ("model/layer_3/dense/MatMul", "model/layer_3"),
        ("gradients/model/layer_3/dense/MatMul_grad/MatMul_1", "model/layer_3"),
        ("gradients_1/h12/Mul", "h12"),
        ("model/embedding/lookup/Gather", "model/embedding"),
        ("head/MatMul_7", "head"),
        ("MatMul_7", ""),
    ],
)
def test_the_layer_of_an_op_comes_from_its_scopes(op: str, layer: str) -> None:
    assert layer_of(op) == layer


def test_each_bin_shows_the_layer_that_takes_most_of_it_and_neighbours_are_one() -> None:
    spans = [Span("compute", "a_1/x", 0.0, 4.0), Span("compute", "a_2/x", 4.0, 4.1), Span("compute", "a_1/y", 4.1, 6.0)]
    spans.append(Span("compute", "a_2/z", 8.0, 10.0))
    shown = layer_spans(spans, 10.0, 10)
    assert [(span.layer, span.begin_s, span.end_s) for span in shown] == [("a_1", 0.0, 6.0), ("a_2", 8.0, 10.0)]
    assert layer_spans([], 1.0, 10) == []


def test_scopes_that_all_layers_share_are_dropped() -> None:
    assert short_names(["m/t/l_0", "m/t/l_1", "m/head"]) == {"m/t/l_0": "t/l_0", "m/t/l_1": "t/l_1", "m/head": "head"}
    assert short_names(["only/l_0"]) == {"only/l_0": "only/l_0"}
    assert short_names([""]) == {"": "other"}
