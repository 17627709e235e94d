"""Fixtures of the compatibility suites: a private CEREBRAS_HOME, and one trained estimator."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

from tests.compat import models


@pytest.fixture(autouse=True, scope="session")
def private_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CEREBRAS_HOME", str(tmp_path_factory.mktemp("home")))
        for name in ("CEREBRAS_EXECUTION_MODE", "K8S_CS_IP", "TF_CONFIG"):
            patch.delenv(name, raising=False)
        yield


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """An estimator that has trained 20 steps, saving every 5, and evaluated once. Tests must not train it."""
    config = tf.estimator.RunConfig(save_checkpoints_steps=5, keep_checkpoint_max=100)
    estimator = tf.estimator.Estimator(models.linear, str(tmp_path_factory.mktemp("trained")), config, {"rate": 0.1})
    return estimator.train(models.repeated, max_steps=20)


@pytest.fixture
def fresh(tmp_path: Path) -> Any:
    """An estimator that has not trained."""
    return tf.estimator.Estimator(models.linear, str(tmp_path / "model"), params={"rate": 0.1})
