"""RunSettings: typed settings, read once from the caller's RunConfig."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from cerebras_tensorflow.estimator.config.cs_config import CSConfig
from cerebras_tensorflow.estimator.config.run_config import CSRunConfig, given_session_config

_OUR_FIELDS = (
    "weight_store",
    "weight_store_dir",
    "stream_window_bytes",
    "min_stream_bytes",
    "use_xla",
    "memory_budget",
    "debug_args",
    "micro_batch_size",
    "num_csx",
    "allow_oversize",
    "model_summary",
    "op_profiler_config",
    "read_once",
)


@dataclass(frozen=True)
class Distribution:
    """How TensorFlow spreads a run over processes and devices. All attributes are as in RunConfig."""

    master: str = ""
    evaluation_master: str = ""
    is_chief: bool = True
    task_type: str = "worker"
    task_id: int = 0
    num_ps_replicas: int = 0
    cluster_spec: Any = None
    device_fn: Any = None
    protocol: str | None = None
    train_distribute: Any = None
    eval_distribute: Any = None
    experimental_max_worker_delay_secs: int | None = None
    session_creation_timeout_secs: int = 7200


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
        distribution: The task in a cluster, and the strategies.
        make_global_step: Makes the global step of a graph; None: TensorFlow does.
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
    distribution: Distribution = Distribution()
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
    make_global_step: Callable[[Any], object] | None = None


def run_settings(config: object) -> RunSettings:
    """Return the settings of a RunConfig, or of another object with some of its attributes."""
    stack_params = getattr(config, "stack_params", None)
    return RunSettings(
        config=config,
        cs=_cs_config(getattr(config, "cs_config", None)),
        stack_params=stack_params if isinstance(stack_params, Mapping) else None,
        is_cs_config=isinstance(config, CSRunConfig),
        distribution=Distribution(**_given(config, Distribution)),
        session_config=given_session_config(config),
        **_given(
            config, RunSettings, ("config", "cs", "is_cs_config", "stack_params", "distribution", "session_config")
        ),
    )


def _given(config: object, kind: type[Any], without: Sequence[str] = ()) -> dict[str, Any]:
    """Return the attributes that a config shares with a dataclass."""
    names = [item.name for item in fields(kind) if item.name not in without]
    return {name: getattr(config, name) for name in names if hasattr(config, name)}


def _cs_config(given: object) -> CSConfig:
    """Return a CSConfig. From another object, such as a message of the appliance, copy the fields that we use."""
    if isinstance(given, CSConfig):
        return given
    return CSConfig(**{name: getattr(given, name) for name in _OUR_FIELDS if hasattr(given, name)})
