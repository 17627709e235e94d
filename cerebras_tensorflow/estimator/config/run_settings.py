"""RunSettings: typed settings, read once from the caller's RunConfig."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, cast

from cerebras_tensorflow.estimator.config.cs_config import CSConfig
from cerebras_tensorflow.estimator.config.run_config import CSRunConfig

_OUR_FIELDS = (
    "weight_store",
    "weight_store_dir",
    "stream_window_bytes",
    "min_stream_bytes",
    "use_xla",
    "memory_budget",
    "debug_args",
)


@dataclass(frozen=True)
class RunSettings:
    """Settings of a run. The estimator's constructor makes them; other code does not read the RunConfig.

    Attributes:
        config: The caller's RunConfig, for model_fn and input_fn.
        cs: The CSConfig of the run.
        cs_ip: Address of the simulated system; None: not given.
        execution_mode: The mode that a config of the appliance (1.6 to 1.8) sets; None: the interpreter decides.
        stack_params: Settings for the original's compiler.
        is_cs_config: Whether the config is a CSRunConfig. The cluster of TF_CONFIG then lists input workers.
        tf_random_seed, save_summary_steps, save_checkpoints_steps, save_checkpoints_secs, session_config,
            keep_checkpoint_max, keep_checkpoint_every_n_hours, log_step_count_steps, checkpoint_save_graph_def,
            checkpoint_format: As in RunConfig.
    """

    config: object
    cs: CSConfig
    cs_ip: str | None = None
    execution_mode: str | None = None
    stack_params: Mapping[str, Any] | None = None
    is_cs_config: bool = False
    tf_random_seed: int | None = None
    save_summary_steps: int | None = None
    save_checkpoints_steps: int | None = None
    save_checkpoints_secs: float | None = None
    session_config: Any = None
    keep_checkpoint_max: int | None = 5
    keep_checkpoint_every_n_hours: float | None = 10000
    log_step_count_steps: int | None = None
    checkpoint_save_graph_def: bool = True
    checkpoint_format: str = "auto"


def run_settings(config: object) -> RunSettings:
    """Return the settings of a RunConfig, or of another object with some of its attributes."""
    given = {
        item.name: getattr(config, item.name)
        for item in fields(RunSettings)
        if item.name not in ("config", "cs", "is_cs_config", "stack_params") and hasattr(config, item.name)
    }
    stack_params = getattr(config, "stack_params", None)
    return RunSettings(
        config=config,
        cs=_cs_config(getattr(config, "cs_config", None)),
        stack_params=stack_params if isinstance(stack_params, Mapping) else None,
        is_cs_config=isinstance(config, CSRunConfig),
        **cast(Any, given),
    )


def _cs_config(given: object) -> CSConfig:
    """Return a CSConfig. From another object, such as a message of the appliance, copy the fields that we use."""
    if isinstance(given, CSConfig):
        return given
    return CSConfig(**{name: getattr(given, name) for name in _OUR_FIELDS if hasattr(given, name)})
