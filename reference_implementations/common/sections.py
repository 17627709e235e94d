"""The sections of params.yaml that all models share."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from cerebras_tensorflow.errors import SettingsError
from reference_implementations.common.optimizers.schedule_settings import read_schedules

Mode = Literal["train", "eval", "eval_all", "predict", "train_and_eval"]
MODES: tuple[str, ...] = ("train", "eval", "eval_all", "predict", "train_and_eval")
TRAINING_MODES = ("train", "train_and_eval")


@dataclass(frozen=True)
class RunSettings:
    """Section `runconfig`. An option of run.py overrides the key of the same name."""

    mode: Mode = "train"
    max_steps: int | None = None  # global step at which training ends
    steps: int | None = None  # steps to train from where the run starts
    eval_steps: int | None = None  # None or 0: until the data ends
    checkpoint_path: str | None = None
    cs_ip: str | None = None
    save_checkpoints_steps: int | None = 1000
    save_checkpoints_secs: float | None = None  # instead of save_checkpoints_steps
    keep_checkpoint_max: int = 5  # 0 keeps all
    keep_checkpoint_every_n_hours: float | None = None  # keep one of the surplus checkpoints every so many hours
    checkpoint_format: Literal["auto", "tensorflow", "h5"] = "auto"
    save_summary_steps: int | None = 100
    log_step_count_steps: int | None = 100
    tf_random_seed: int | None = None
    throttle_secs: int = 0  # accepted, without effect: train_and_eval evaluates once
    disable_input_pipeline_ckpt: bool = False  # true: a resumed run starts the data from its beginning
    synthetic: bool = False  # random batches with the shapes of the data, which need not be there
    memory_budget: int | str | None = None  # of the process, as bytes or "4GB"; None: no limit
    micro_batch_size: int | str | dict[str, Any] | None = None  # for all modes; an input section overrides it
    allow_oversize: bool = False  # go on with a model that does not fit on the simulated wafer
    model_summary: bool = False  # log the layers of each compiled step
    num_csx: int | None = None  # CS systems that share the batches of training
    global_batch_size: int | None = None  # samples of all systems in a training step, instead of batch_size
    multireplica: bool = False  # replicas of the model share each batch; pipelined, with cs_ip
    op_profiler_config: dict[str, Any] | None = None  # start_step and end_step of the run to profile
    read_once: bool | None = None  # one system reads a checkpoint, and sends it to the others
    num_wgt_servers: int | None = None
    num_act_servers: int | None = None
    num_workers_per_csx: int | None = None
    mount_dirs: tuple[str, ...] = ()
    python_paths: tuple[str, ...] = ()
    job_labels: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for label in self.job_labels:
            if not label.partition("=")[1] or not label.partition("=")[0]:
                raise SettingsError(f"job label {label!r}; expected key=value")
        for name in ("num_csx", "global_batch_size"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise SettingsError(f"{name} is {value}; expected at least 1")
        if self.steps is not None and self.max_steps is not None:
            raise SettingsError(
                f"steps ({self.steps}) and max_steps ({self.max_steps}) are both given; keep max_steps to stop at that "
                "global step, or steps to train that many more"
            )


@dataclass(frozen=True)
class CsSettings:
    """Section `csconfig`: its keys are arguments of CSConfig."""

    use_cbfloat16: bool = False
    weight_store: Literal["auto", "memory", "servers", "file"] = "auto"
    weight_store_dir: str | None = None
    stream_window_bytes: int | None = None
    min_stream_bytes: int = 64 * 1024
    use_xla: bool = False
    memory_budget: int | str | None = None  # runconfig's memory_budget overrides it
    micro_batch_size: int | str | dict[str, Any] | None = None  # runconfig's micro_batch_size overrides it
    allow_oversize: bool = False
    model_summary: bool = False
    op_profiler_config: dict[str, Any] | None = None
    read_once: bool = True


@dataclass(frozen=True)
class OptimizerSettings:
    """Section `optimizer`."""

    optimizer_type: Literal["sgd", "momentum", "adam", "adamw", "lamb", "adafactor"] = "adamw"
    # A number, a schedule, or a list of schedules that follow each other, as optimizers/schedules.py shows.
    learning_rate: float | dict[str, Any] | tuple[Any, ...] = 1e-3
    momentum: float = 0.9
    use_nesterov: bool = False
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8
    weight_decay_rate: float = 0.0
    # A weight whose name contains one of these is not decayed.
    exclude_from_weight_decay: tuple[str, ...] = field(
        default=("layer_norm", "LayerNorm", "ln_1", "ln_2", "norm", "bias", "gamma", "beta")
    )
    use_bias_correction: bool = True
    max_gradient_norm: float | None = None
    max_gradient_value: float | None = None
    grad_accum_steps: int = 1  # batches whose mean gradient makes one update; max_steps counts updates
    loss_scaling_factor: float | Literal["dynamic", "tf_dynamic"] = 1.0  # both words mean the same here
    # For dynamic scaling; the defaults are those of the public Model Zoo.
    initial_loss_scale: float = 2.0**15
    steps_per_increase: int = 2000
    min_loss_scale: float = 2.0**-14
    max_loss_scale: float = 2.0**15
    overflow_tolerance: float = 0.05  # share of steps that may overflow before the factor is halved
    log_summaries: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.learning_rate, (int, float)):
            read_schedules(self.learning_rate)
        if isinstance(self.loss_scaling_factor, float) and self.loss_scaling_factor <= 0.0:
            raise SettingsError(f"loss_scaling_factor is {self.loss_scaling_factor}; expected more than 0, or dynamic")
        if not self.min_loss_scale <= self.initial_loss_scale <= self.max_loss_scale:
            raise SettingsError(
                f"initial_loss_scale is {self.initial_loss_scale}; expected min_loss_scale {self.min_loss_scale} to "
                f"max_loss_scale {self.max_loss_scale}"
            )
        if self.max_gradient_norm is not None and self.max_gradient_value is not None:
            raise SettingsError("max_gradient_norm and max_gradient_value are both given; keep one")
