"""Generated networks train to the same bits in a plain session, in both modes, in every store and on several CSX."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

from cerebras_tensorflow.errors import CompileError
from tests.numerics import micro_batches
from tests.numerics.cpu_load import cpu_load
from tests.numerics.network_bits import STREAMED, Stores, all_stores, check
from tests.numerics.networks import Network, draw_network, network_loss, train_network
from tests.numerics.test_several_csx_are_exact import COUNT, WHOLE, train_on


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stores]:
    """All stores, with a load on the CPU."""
    with all_stores(tmp_path_factory.mktemp("stores")) as made, cpu_load(1, 3600):
        yield made


# Two tests of 30, so that two processes share them.
@pytest.mark.parametrize("first", [0, 30])
def test_thirty_networks_agree_in_every_bit(first: int, stores: Stores) -> None:
    for seed in range(first, first + 30):
        check(draw_network(seed), stores, (STREAMED[seed % len(STREAMED)],))


CSX_RUNS = ("pipelined on 2", "streamed from memory on 3", "from a file for each of 4")


def check_on_csx(network: Network, runs: Sequence[str], folder: Path) -> None:
    """Compare every bit of a network's training on 1 and on several CSX.

    With a sum over the rows that a batch names (`seen_rows`), the network is refused.
    """

    def loss(ids_BS: Any, targets_B: Any) -> Any:
        labels_BS = tf.tile(targets_B[:, None], [1, ids_BS.shape[1]])
        return network_loss(network, ids_BS, labels_BS, micro_batches.VOCABULARY)

    data = micro_batches.batches(3, WHOLE)
    cut = micro_batches.build(partial(train_network, network), loss, COUNT, WHOLE)
    if any(layer.kind == "seen_rows" for layer in network.layers):
        with pytest.raises(CompileError, match="There is no rule for its total over micro-batches"):
            micro_batches.train(cut, "weight_streaming", 3, folder, data=data)
        return
    one = micro_batches.train(cut, "weight_streaming", 3, folder, data=data)
    for run in runs:
        if run == CSX_RUNS[0]:
            several = train_on(2, cut, "pipelined", data=data)
        else:
            shared = "memory" if run == CSX_RUNS[1] else "file"
            several = train_on(int(run[-1]), cut, "weight_streaming", folder=folder, data=data, shared=shared)
        assert (several.losses, micro_batches.different(one, several)) == (one.losses, []), run


def test_networks_agree_in_every_bit_on_several_csx(tmp_path: Path) -> None:
    for seed in range(60, 68):
        check_on_csx(draw_network(seed), (CSX_RUNS[seed % 3],), tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2000, 2200))
def test_two_hundred_networks_agree_in_every_bit_on_several_csx(seed: int, tmp_path: Path) -> None:
    check_on_csx(draw_network(seed), CSX_RUNS, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 1100))
def test_a_thousand_networks_agree_in_every_bit(seed: int, stores: Stores) -> None:
    check(draw_network(seed), stores, STREAMED)
