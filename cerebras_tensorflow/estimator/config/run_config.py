"""RunConfig and CSRunConfig: seed, checkpoints and logs of a run, and the system that it uses."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from numbers import Integral
from typing import Any

from cerebras_tensorflow.config import env
from cerebras_tensorflow.estimator.config.cluster import cluster_task, input_worker_task
from cerebras_tensorflow.estimator.config.cs_config import CSConfig
from cerebras_tensorflow.estimator.user_functions import parameters_of
from cerebras_tensorflow.locations import checkpoint_location
from cerebras_tensorflow.logs import run_log

_UNSET: Any = object()
CHECKPOINT_FORMATS = ("auto", "tensorflow", "h5")


def _setting(name: str, text: str) -> Any:
    """Return the property of a setting."""
    return property(lambda self: self._settings[name], doc=text)


class RunConfig:
    """Settings of a run, with the names and defaults of tf.estimator.RunConfig 2.15. Immutable; see `replace`.

    Args:
        model_dir: Folder of checkpoints and event files.
        tf_random_seed: Seed of the model's graph.
        save_summary_steps: Steps between summaries; None or 0: no summaries.
        save_checkpoints_steps, save_checkpoints_secs: Interval between checkpoints; set at most one. Default: every 600
            seconds. Both None: never, but a CerebrasEstimator saves the first and the last step.
        session_config: tf.compat.v1.ConfigProto of the session.
        keep_checkpoint_max: Number of newest checkpoints to keep; 0 or None: all.
        keep_checkpoint_every_n_hours: Of the older checkpoints, one per this many hours is kept.
        log_step_count_steps: Steps between log lines; None: no lines.
        train_distribute, eval_distribute: tf.distribute.Strategy of training and of evaluation.
        device_fn: In a cluster, returns the device of an op; default: tf.compat.v1.train.replica_device_setter.
        protocol: Protocol of the cluster's servers; None: gRPC.
        experimental_distribute: Object with train_distribute and eval_distribute.
        experimental_max_worker_delay_secs: Longest delay of a cluster's workers; default: 60.
        session_creation_timeout_secs: In a cluster, how long a worker waits for the chief.
        checkpoint_save_graph_def: Whether a checkpoint's .meta file is written.
        checkpoint_format: Our own setting: "tensorflow", "h5" or "auto". "auto" chooses HDF5 for weight streaming
            through the appliance's interface outside csrun, since such scripts read with CheckpointReader. Otherwise it
            chooses TensorFlow's format, which tf.train reads.

    Raises:
        ValueError: If a value is out of range or both save intervals are given. RunConfig only: if the cluster of
            TF_CONFIG lacks this task or does not have exactly one chief, or TF_CONFIG names another model_dir. If a
            strategy is given twice, or cannot be used with an Estimator.
        TypeError: If a setting is unknown, or the service of TF_CONFIG is not a dict.
    """

    _checks_cluster = True

    def __init__(
        self,
        model_dir: str | None = None,
        tf_random_seed: int | None = None,
        save_summary_steps: int | None = 100,
        save_checkpoints_steps: Any = _UNSET,
        save_checkpoints_secs: Any = _UNSET,
        session_config: Any = None,
        keep_checkpoint_max: int | None = 5,
        keep_checkpoint_every_n_hours: float | None = 10000,
        log_step_count_steps: int | None = 100,
        train_distribute: Any = None,
        device_fn: Any = None,
        protocol: str | None = None,
        eval_distribute: Any = None,
        experimental_distribute: Any = None,
        experimental_max_worker_delay_secs: int | None = None,
        session_creation_timeout_secs: int = 7200,
        checkpoint_save_graph_def: bool = True,
        *,
        checkpoint_format: str = "auto",
    ) -> None:
        save_checkpoints_steps, save_checkpoints_secs = _save_intervals(save_checkpoints_steps, save_checkpoints_secs)
        tf_config = env.tf_config()
        if tf_config and self._checks_cluster:
            run_log.info("TF_CONFIG environment variable: %s", tf_config)
        self._model_dir = checkpoint_location(model_dir) if model_dir is not None else None
        if self._checks_cluster:
            self._model_dir = _model_dir_of(tf_config, self._model_dir)
        self._settings: dict[str, Any] = {
            "tf_random_seed": tf_random_seed,
            "save_summary_steps": save_summary_steps,
            "save_checkpoints_steps": save_checkpoints_steps,
            "save_checkpoints_secs": save_checkpoints_secs,
            "session_config": session_config,
            "keep_checkpoint_max": keep_checkpoint_max,
            "keep_checkpoint_every_n_hours": keep_checkpoint_every_n_hours,
            "log_step_count_steps": log_step_count_steps,
            "checkpoint_format": checkpoint_format,
            "train_distribute": train_distribute,
            "device_fn": device_fn,
            "protocol": protocol,
            "eval_distribute": eval_distribute,
            "experimental_distribute": experimental_distribute,
            "experimental_max_worker_delay_secs": experimental_max_worker_delay_secs,
            "session_creation_timeout_secs": session_creation_timeout_secs,
            "checkpoint_save_graph_def": checkpoint_save_graph_def,
        }
        _check_ranges({**self._settings, "model_dir": self._model_dir})
        self._settings.update(_strategies(self._settings))
        self._task = cluster_task(tf_config) if self._checks_cluster else input_worker_task(tf_config)
        if self._checks_cluster and session_config is None:
            self._settings["session_config"] = self._default_session_config()
        self._service = tf_config.get("service")
        if self._service is not None and not isinstance(self._service, dict):
            raise TypeError(f'If "service" is set in TF_CONFIG, it must be a dict. Given {type(self._service)}')

    def __getattr__(self, name: str) -> Any:
        settings = self.__dict__.get("_settings", {})
        if name in settings:
            return settings[name]
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    tf_random_seed = _setting("tf_random_seed", "Seed of the model's graph.")
    save_summary_steps = _setting("save_summary_steps", "Steps between summaries.")
    save_checkpoints_steps = _setting("save_checkpoints_steps", "Steps between checkpoints.")
    save_checkpoints_secs = _setting("save_checkpoints_secs", "Time between checkpoints [s].")
    session_config = _setting("session_config", "ConfigProto of the session.")
    keep_checkpoint_max = _setting("keep_checkpoint_max", "Number of newest checkpoints to keep.")
    keep_checkpoint_every_n_hours = _setting(
        "keep_checkpoint_every_n_hours", "Of the older checkpoints, one per this many hours is kept."
    )
    log_step_count_steps = _setting("log_step_count_steps", "Steps between log lines.")
    train_distribute = _setting("train_distribute", "Strategy of training.")
    eval_distribute = _setting("eval_distribute", "Strategy of evaluation.")
    device_fn = _setting("device_fn", "Returns the device of an op, in a cluster.")
    protocol = _setting("protocol", "Protocol of the cluster's servers.")
    experimental_max_worker_delay_secs = _setting(
        "experimental_max_worker_delay_secs", "Longest delay of a cluster's workers [s]."
    )
    session_creation_timeout_secs = _setting(
        "session_creation_timeout_secs", "How long a worker waits for the chief [s]."
    )
    checkpoint_save_graph_def = _setting("checkpoint_save_graph_def", "Whether a checkpoint's .meta file is written.")

    @property
    def model_dir(self) -> str | None:
        """Folder of checkpoints and event files."""
        return self._model_dir

    @property
    def task_type(self) -> str:
        """Type of this task in TF_CONFIG."""
        return self._task.kind

    @property
    def task_id(self) -> int:
        """Index of this task in TF_CONFIG."""
        return self._task.index

    @property
    def is_chief(self) -> bool:
        """Whether this process saves and logs: the cluster's chief, or its first worker if it has none."""
        return self._task.is_chief

    @property
    def cluster_spec(self) -> Any:
        """The cluster of TF_CONFIG, as a tf.train.ClusterSpec."""
        import tensorflow as tf

        return tf.train.ClusterSpec(self._task.jobs)

    @property
    def master(self) -> str:
        """Session target of training: "grpc://" and this task's address, or "" for this process."""
        return self._task.master

    @property
    def evaluation_master(self) -> str:
        """Session target of evaluations; "" is this process."""
        return self._task.evaluation_master

    @property
    def num_ps_replicas(self) -> int:
        """Number of parameter servers in TF_CONFIG; 0 for an evaluator, which is not in the cluster."""
        return self._task.num_ps

    @property
    def num_worker_replicas(self) -> int:
        """Number of workers in TF_CONFIG, including the chief; 1 without a cluster."""
        return self._task.num_workers

    @property
    def service(self) -> Any:
        """The platform's settings in TF_CONFIG."""
        return self._service

    @property
    def global_id_in_cluster(self) -> int | None:
        """Index of this task in the order chief, other jobs by name, parameter servers; None for an evaluator."""
        return self._task.global_id

    def replace(self, **changes: Any) -> RunConfig:
        """Return a copy with other values. It has a session_config of its own, as in tf.estimator.

        Raises:
            ValueError: If a setting is unknown or out of range, or both save intervals are given.
        """
        _check_ranges(changes)
        if changes.get("save_checkpoints_steps") is not None and changes.get("save_checkpoints_secs") is not None:
            raise ValueError("`save_checkpoints_steps` and `save_checkpoints_secs` cannot be both set.")
        result = copy.copy(self)
        result._change(changes)  # noqa: SLF001 - of the same class
        return result

    def _default_session_config(self) -> Any:
        """Return the ConfigProto of a task in a cluster. Its filters let a trainer run while other trainers are down.

        None without a cluster. Also None with a strategy, because the strategy makes its own.
        """
        jobs, filters = self._task.jobs, self._task.device_filters
        if not jobs or not filters or (self._settings["train_distribute"] is not None and "master" not in jobs):
            return None
        return default_session_config(filters)

    def _change(self, changes: Mapping[str, Any]) -> None:
        session_config = copy.deepcopy(self._settings["session_config"])
        self._settings = {**self._settings, "session_config": session_config}
        if changes.get("save_checkpoints_steps") is not None:
            self._settings["save_checkpoints_secs"] = None
        if changes.get("save_checkpoints_secs") is not None:
            self._settings["save_checkpoints_steps"] = None
        for name, value in changes.items():
            if name == "model_dir":
                self._model_dir = checkpoint_location(value) if value is not None else None
            elif name in self._settings:
                self._settings[name] = value
            else:
                allowed = ["model_dir", *self._settings]
                raise ValueError(f"Replacing {name} is not supported. Allowed properties are {allowed}.")


def _save_intervals(steps: Any, seconds: Any) -> tuple[Any, Any]:
    """Return save_checkpoints_steps and save_checkpoints_secs with their defaults.

    Raises:
        ValueError: If both are set.
    """
    if steps is _UNSET and seconds is _UNSET:
        return None, 600
    steps, seconds = (None if value is _UNSET else value for value in (steps, seconds))
    if steps is not None and seconds is not None:
        raise ValueError("`save_checkpoints_steps` and `save_checkpoints_secs` cannot be both set.")
    return steps, seconds


def default_session_config(device_filters: Sequence[str] = ()) -> Any:
    """Return the ConfigProto that tf.estimator 2.15 uses if the caller gives none.

    Args:
        device_filters: The devices that the task sees; empty: all.
    """
    import tensorflow as tf

    result = tf.compat.v1.ConfigProto(allow_soft_placement=True, device_filters=device_filters)
    result.graph_options.rewrite_options.meta_optimizer_iterations = 1  # the enum value ONE of RewriterConfig
    return result


def with_default_session_config(config: Any) -> Any:
    """Return a copy of a config with the session_config of tf.estimator 2.15, for a model_fn that reads it."""
    result = config.replace(session_config=default_session_config())
    result._has_default_session_config = True  # noqa: SLF001 - replace keeps it
    return result


def given_session_config(config: object) -> Any:
    """Return the caller's session_config; None if with_default_session_config has set it, and nobody changed it."""
    given = getattr(config, "session_config", None)
    is_default = getattr(config, "_has_default_session_config", False) and given == default_session_config()
    return None if is_default else given


def _check_ranges(settings: Mapping[str, Any]) -> None:
    for name in ("save_summary_steps", "save_checkpoints_steps", "save_checkpoints_secs", "keep_checkpoint_max"):
        value = settings.get(name)
        if value is not None and value < 0:
            raise ValueError(f"{name} should be >= 0, given: {value}")
    for name in ("keep_checkpoint_every_n_hours", "log_step_count_steps"):
        value = settings.get(name)
        if value is not None and value <= 0:
            raise ValueError(f"{name} should be > 0, given: {value}")
    checkpoint_format = settings.get("checkpoint_format", "auto")
    if checkpoint_format not in CHECKPOINT_FORMATS:
        raise ValueError(
            f"checkpoint_format must be one of {', '.join(CHECKPOINT_FORMATS)}, given: {checkpoint_format!r}"
        )
    if settings.get("protocol") not in (None, "grpc", "grpc+verbs"):
        raise ValueError("protocol should be grpc or grpc+verbs")
    timeout = settings.get("session_creation_timeout_secs")
    if timeout is not None and timeout <= 0:
        raise ValueError(f"session_creation_timeout_secs should be > 0, given: {timeout}")
    delay = settings.get("experimental_max_worker_delay_secs")
    if delay is not None and not isinstance(delay, Integral):
        raise ValueError(f"experimental_max_worker_delay_secs must be an integer if set, given: {delay!r}")
    _check_types(settings)


def _check_types(settings: Mapping[str, Any]) -> None:
    if settings.get("model_dir") == "":
        raise ValueError("model_dir should be non-empty.")
    seed = settings.get("tf_random_seed")
    if seed is not None and not isinstance(seed, Integral):
        raise ValueError(f"tf_random_seed must be integer, given: {seed!r}")
    session_config = settings.get("session_config")
    if session_config is not None and not hasattr(session_config, "inter_op_parallelism_threads"):
        raise ValueError(f"session_config must be instance of ConfigProto, given: {session_config!r}")
    device_fn = settings.get("device_fn")
    if device_fn is not None and (not callable(device_fn) or parameters_of(device_fn) - {"self"} != {"op"}):
        raise ValueError(f'device_fn must be callable with exactly one argument "op", given: {device_fn}')


def _model_dir_of(tf_config: Mapping[str, Any], model_dir: str | None) -> str | None:
    """Return the model_dir of the argument or of TF_CONFIG.

    Raises:
        ValueError: If the model_dir of TF_CONFIG is empty, or differs from the argument.
    """
    given = tf_config.get("model_dir")
    if given == "":
        raise ValueError("model_dir in TF_CONFIG should be non-empty.")
    given = checkpoint_location(given) if given else given
    if given and model_dir and given != model_dir:
        raise ValueError(
            "`model_dir` provided in RunConfig construct, if set, must have the same value as the model_dir in "
            f'TF_CONFIG. model_dir: {model_dir}\nTF_CONFIG["model_dir"]: {given}.\n'
        )
    return model_dir if model_dir is not None else given


def _strategies(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return train_distribute and eval_distribute; experimental_distribute may hold them instead.

    Raises:
        ValueError: If one is given twice, or is the ParameterServerStrategy of TensorFlow 2. If experimental_distribute
            has a remote cluster.
        AttributeError: If experimental_distribute lacks one of them.
    """
    experimental = settings["experimental_distribute"]
    if getattr(experimental, "remote_cluster", None):
        raise ValueError(
            "experimental_distribute.remote_cluster is not supported: one program cannot run the tasks of other "
            "machines. Start the program on each machine, with TF_CONFIG."
        )
    result: dict[str, Any] = {}
    for name in ("train_distribute", "eval_distribute"):
        other = getattr(experimental, name) if experimental else None  # AttributeError as in 2.15
        if other is not None and settings[name] is not None:
            raise ValueError(f"Either `{name}` or `experimental_distribute.{name}` can be set.")
        result[name] = settings[name] if other is None else other
        if type(result[name]).__name__ == "ParameterServerStrategyV2":
            raise ValueError(
                "Please use `tf.compat.v1.distribute.experimental.ParameterServerStrategy` for parameter server "
                "strategy with estimator."
            )
    return result


class CSRunConfig(RunConfig):
    """A RunConfig that names the CS system.

    Args:
        cs_ip: Address of the system, with or without port. None: this machine's CPU in pipelined mode, or the embedded
            simulated system in weight streaming.
        system_name: Stored without effect.
        cs_config: CSConfig, or any object with its fields.
        stack_params: Settings for the original's compiler. We read only the number of replicas.
        **kwargs: As RunConfig; the default of tf_random_seed is 1.
    """

    _checks_cluster = False  # the TF_CONFIG of an input worker lists only input workers

    def __init__(
        self,
        cs_ip: str | None = None,
        system_name: str | None = None,
        cs_config: Any = None,
        stack_params: Any = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**{"tf_random_seed": 1, **kwargs})
        self._settings.update(cs_ip=cs_ip, system_name=system_name, stack_params=stack_params)
        self._settings["cs_config"] = cs_config if cs_config is not None else CSConfig()
