"""The model of the wafer: placement, refusals, and how time depends on batch, release and number of systems."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cerebras_tensorflow.errors import PlacementError, SettingsError
from cerebras_tensorflow.system import facts
from cerebras_tensorflow.system.wafer.advice import advice
from cerebras_tensorflow.system.wafer.placement import COLUMNS, CORE_DATA_BYTES, ROWS, Demand, place
from cerebras_tensorflow.system.wafer.scaling import added_s, efficiency, scaling, scaling_text
from cerebras_tensorflow.system.wafer.simulate import Workload, simulate
from cerebras_tensorflow.system.wafer.simulation import Simulation
from cerebras_tensorflow.system.wafer.transformers import BERT_LARGE, FC_MNIST, GPTJ_6B, dense_layers

GPTJ, BERT, MNIST = GPTJ_6B.network(), BERT_LARGE.network(), dense_layers(FC_MNIST)


def streamed(batch_size: int, **settings: object) -> Simulation:
    return simulate(GPTJ, replace(Workload("weight_streaming", batch_size), **settings))  # type: ignore[arg-type]


def test_layers_lie_side_by_side_on_the_wafer_and_their_memory_holds_them() -> None:
    placed = simulate(BERT, Workload("pipelined", 256)).layers
    taken = set()
    for layer in placed:
        box = layer.rectangle
        assert box is not None and layer.num_bytes <= box.cores * CORE_DATA_BYTES
        assert box.x >= 0 and box.x + box.width <= COLUMNS and box.y >= 0 and box.y + box.height <= ROWS
        corners = {(box.x, box.y), (box.x + box.width - 1, box.y + box.height - 1)}
        assert not corners & taken
        taken |= {(x, y) for x in range(box.x, box.x + box.width) for y in range(box.y, box.y + box.height)}
    assert 0.9 * ROWS * COLUMNS < len(taken) <= facts.CORES.value


def test_layers_with_much_work_take_about_the_same_time() -> None:
    times = sorted(layer.time.seconds for layer in simulate(BERT, Workload("pipelined", 256)).layers)
    assert times[-1] < 1.15 * times[len(times) // 2]


def test_memory_comes_before_balance() -> None:
    whole = ROWS * COLUMNS * CORE_DATA_BYTES
    heavy, busy = place([Demand("heavy", 0.0, whole / 2), Demand("busy", 1.0, 1.0)])
    assert heavy.cores >= ROWS * COLUMNS / 2 and busy.cores > 0.4 * ROWS * COLUMNS


def test_no_layer_gets_a_strip_so_narrow_that_its_edge_slows_it() -> None:
    layers = [Demand(str(number), 1.0, 1.0) for number in range(30)]
    boxes = place([*layers, Demand("huge", 40.0, 1.0), Demand("small", 0.01, 1.0)])
    assert min(box.width for box in boxes) > COLUMNS / 20


def test_what_does_not_fit_is_refused_with_layer_need_and_way_out_unless_it_may_be_oversize() -> None:
    with pytest.raises(PlacementError, match=r"wafer has 37\.6 GB .* Layer block_0/\w+ needs most: .* Use weight str"):
        simulate(GPTJ, Workload("pipelined", 8))
    oversize = simulate(GPTJ, Workload("pipelined", 8, allow_oversize=True))
    assert oversize.problem and oversize.samples_per_s > 0
    assert all(layer.rectangle is None for layer in oversize.layers)
    long = replace(GPTJ_6B, sequence=2**20).network()
    with pytest.raises(PlacementError, match=r"the activations of one sample need .* Use shorter sequences"):
        simulate(long, Workload("weight_streaming", 1))


def test_small_batches_are_slow_in_both_modes() -> None:
    for network, mode in ((BERT, "pipelined"), (GPTJ, "weight_streaming")):
        speeds = [simulate(network, Workload(mode, batch)).samples_per_s for batch in (1, 8, 64)]
        assert speeds == sorted(speeds) and speeds[0] < 0.7 * speeds[-1]
    assert "larger batch_size" in " ".join(advice(streamed(1)))
    assert "Begin and end of a step" in advice(simulate(MNIST, Workload("pipelined", 8)))[0]


def test_a_batch_whose_activations_do_not_fit_is_cut_into_micro_batches() -> None:
    step = streamed(400)
    assert step.micro_batches > 1 and step.batch_size == 400
    assert step.kept_bytes < ROWS * COLUMNS * CORE_DATA_BYTES
    assert streamed(64, micro_batch_size=4).micro_batches == 16
    assert streamed(64, micro_batch_size=4).sent_bytes > 3 * streamed(64).sent_bytes  # weights arrive for each


def test_weights_arrive_and_gradients_leave_over_the_links() -> None:
    step = streamed(8)
    assert step.received_bytes == step.micro_batches * 4 * GPTJ.num_weights
    assert step.sent_bytes > 2 * step.received_bytes * 0.9
    assert simulate(BERT, Workload("pipelined", 8)).transmitted_bytes == 8 * BERT.sample_bytes


def test_systems_scale_and_the_tree_between_them_costs_a_little() -> None:
    curve = scaling(GPTJ, Workload("weight_streaming", 65))
    speeds = [curve[count].samples_per_s for count in (1, 2, 4, 8, 16)]
    for count, speed in zip((1, 2, 4, 8, 16), speeds, strict=True):
        assert 0.9 * count * speeds[0] < speed <= count * speeds[0]
    assert curve[16].batch_size == 16 * 65
    added = added_s(curve[1], curve[16])
    assert sum(added.values()) == pytest.approx(curve[16].step_s - curve[1].step_s)
    assert next(iter(added)) == "broadcast" and added["reduction"] > 0 and added["input"] == 0
    assert (
        "What limits scaling: broadcast" in (text := scaling_text(curve))
        and f"{efficiency(curve[1], curve[16]):.1%}" in text
    )
    with pytest.raises(SettingsError, match="pipelined mode uses one system"):
        simulate(BERT, Workload("pipelined", 8, num_csx=2))


def test_what_a_step_waits_for_adds_up_and_small_layers_wait_for_their_first_weight() -> None:
    small, large = simulate(MNIST, Workload("weight_streaming", 8)), streamed(65)
    for step in (small, large):
        assert sum(step.limits().values()) == pytest.approx(step.step_s)
    assert small.limits()["fill and drain"] > 2 * small.limits().get("compute", 0)
    assert 0 < large.limits()["fill and drain"] < 0.1 * large.limits()["compute"]
    text = " ".join(small.assumptions)
    assert f"hop of weights or gradients through the network: {facts.CLUSTER_HOP_S.value:g} s (assumed" in text


def test_releases_differ_and_unknown_ones_are_refused() -> None:
    assert streamed(65, release="2.1.1").samples_per_s > 1.5 * streamed(65, release="1.7.1").samples_per_s
    for mode in ("pipelined", "weight_streaming"):
        for release in ("three", "2.\u00b2"):
            with pytest.raises(SettingsError, match=f"release is '{release}'; expected one such as"):
                simulate(BERT, Workload(mode, 64, release=release))


def test_a_width_just_above_a_multiple_of_the_columns_is_slow_and_the_advice_says_so() -> None:
    def streamed_bert(hidden: int) -> tuple[float, list[str]]:
        network = replace(BERT_LARGE, hidden=hidden, filter=4 * hidden).network()
        step = simulate(network, Workload("weight_streaming", 1024))
        return step.flops / step.step_s, advice(step)

    (fast, quiet), (slow, told) = streamed_bert(COLUMNS), streamed_bert(COLUMNS + 24)
    assert slow < 0.8 * fast
    assert "whole features" in " ".join(told) and "whole features" not in " ".join(quiet)


def test_a_figure_comes_with_a_range_around_it() -> None:
    for step in (streamed(65), simulate(BERT, Workload("pipelined", 64)), simulate(MNIST, Workload("pipelined", 8))):
        slow, fast = step.samples_range
        assert 0 < slow < step.samples_per_s < fast


def test_a_model_without_layers_has_no_rectangles() -> None:
    assert place([]) == []
