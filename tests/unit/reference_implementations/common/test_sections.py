"""The sections that all models share say what the Estimator's own settings say."""

from __future__ import annotations

import dataclasses

import pytest

from cerebras_tensorflow.estimator.config.cs_config import STORES, CSConfig
from reference_implementations.common.sections import CsSettings
from reference_implementations.common.settings import check_section


def test_csconfig_takes_all_of_our_settings_with_their_defaults() -> None:
    theirs = {field.name: field.default for field in dataclasses.fields(CSConfig)}
    names = list(theirs)
    # Those before it are the original's: of the cluster, which runconfig says.
    ours = names[names.index("use_cbfloat16") :]
    assert {field.name: field.default for field in dataclasses.fields(CsSettings)} == {
        name: theirs[name] for name in ours
    }


@pytest.mark.parametrize("store", STORES)
def test_csconfig_takes_every_store(store: str) -> None:
    found = check_section({"weight_store": store}, CsSettings, "csconfig", "p.yaml")
    assert CSConfig(**dataclasses.asdict(found)).weight_store == store
