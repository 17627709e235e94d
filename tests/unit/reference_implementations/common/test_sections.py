"""Sections that all models share match the settings of the Estimator."""

from __future__ import annotations

import dataclasses

import pytest

from cerebras_tensorflow.estimator.config.cs_config import STORES, CSConfig
from reference_implementations.common.sections import CsSettings
from reference_implementations.common.settings import check_section


def test_csconfig_takes_all_of_our_settings_with_their_defaults() -> None:
    theirs = {field.name: field.default for field in dataclasses.fields(CSConfig)}
    names = list(theirs)
    # The fields before it are the published cluster settings, which belong to runconfig.
    ours = names[names.index("use_cbfloat16") :]
    assert {field.name: field.default for field in dataclasses.fields(CsSettings)} == {
        name: theirs[name] for name in ours
    }


@pytest.mark.parametrize("store", STORES)
def test_csconfig_takes_every_store(store: str) -> None:
    section = check_section({"weight_store": store}, CsSettings, "csconfig", "p.yaml")
    assert CSConfig(**dataclasses.asdict(section)).weight_store == store
