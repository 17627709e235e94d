"""Which tf.distribute strategies an Estimator runs."""

from __future__ import annotations

from typing import Any

from cerebras_tensorflow.errors import SettingsError
from cerebras_tensorflow.estimator.config.run_settings import Distribution


def check_strategy(setting: str, strategy: Any, distribution: Distribution) -> None:
    """Check that an Estimator can run a strategy.

    Args:
        setting: The setting of RunConfig that holds it, for the error.
        strategy: The strategy, or None.
        distribution: This task of the cluster.

    Raises:
        ValueError: If it is not a strategy, needs a TPU, or would train in a cluster.
    """
    if strategy is None:
        return
    name = type(strategy).__name__
    if not hasattr(strategy, "extended") or not hasattr(strategy, "make_input_fn_iterator"):
        raise ValueError(f"{setting} must be a tf.distribute.Strategy, given: {strategy!r}")
    if name.startswith("TPUStrategy"):
        raise ValueError(
            f"{setting} is a {name}, but there is no TPU here. Leave {setting} out: the run then uses this machine."
        )
    if setting == "train_distribute" and distribution.cluster_spec and distribution.cluster_spec.jobs:
        raise ValueError(
            f"A {name} cannot train in a cluster of TF_CONFIG. Leave train_distribute out: the cluster then trains by "
            "between-graph replication, synchronously if the optimizer is a tf.compat.v1.train.SyncReplicasOptimizer."
        )


def check_no_system(setting: str, is_cs: bool) -> None:
    """Raise an error if a run has both a strategy and a CS system."""
    if is_cs:
        raise SettingsError(f"{setting} is set, but a CS system cannot run a strategy. Leave out one of them.")
