"""Generated networks train to the same bits in a plain session and in both modes, with every kind of store."""

from __future__ import annotations

from collections.abc import Iterator

import hypothesis
import pytest

from tests.numerics.cpu_load import cpu_load
from tests.numerics.network_bits import STREAMED, Stores, all_stores, check, settings
from tests.numerics.networks import Network, networks


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stores]:
    """All stores, with a load on the CPU."""
    with all_stores(tmp_path_factory.mktemp("stores")) as made, cpu_load(1, 3600):
        yield made


# Two tests of 30, so that two processes share them. hypothesis derives the networks from the test's name.
@settings(30)
@hypothesis.given(network=networks, kind=hypothesis.strategies.sampled_from(STREAMED))
def test_thirty_networks_agree_in_every_bit(stores: Stores, network: Network, kind: str) -> None:
    check(network, stores, (kind,))


@settings(30)
@hypothesis.given(network=networks, kind=hypothesis.strategies.sampled_from(STREAMED))
def test_thirty_more_networks_agree_in_every_bit(stores: Stores, network: Network, kind: str) -> None:
    check(network, stores, (kind,))


@pytest.mark.slow
@settings(1000)
@hypothesis.given(network=networks)
def test_a_thousand_networks_agree_in_every_bit(stores: Stores, network: Network) -> None:
    check(network, stores, STREAMED)
