from cerebras_tensorflow.system import facts


def test_derived_figures_agree_with_the_published_ones() -> None:
    assert abs(facts.CORES.value * facts.CORE_SRAM_BYTES.value / facts.SRAM_BYTES.value - 1) < 0.05
    peak_flops = facts.HALF_PRECISION_FLOPS.value * 1.1e9 / facts.CLOCK_HZ.value
    assert abs(peak_flops / 7.5e15 - 1) < 0.01


def test_every_figure_has_a_unit_source_and_status() -> None:
    for name, fact in facts.all_facts().items():
        assert fact.unit and fact.source, name
        assert fact.status in ("published", "derived", "fitted", "assumed"), name
        if fact.low is not None and fact.high is not None:
            assert fact.low < fact.value < fact.high, name
