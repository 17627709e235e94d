"""Every environment variable that we read or set, in one table. No other module reads settings from os.environ.

| variable | set by | meaning |
|---|---|---|
| CEREBRAS_DEBUG | user; --debug | `1` shows the traceback of our own errors, not only their text |
| CEREBRAS_TENSORFLOW_AUTOLOAD | user | `0`: no tf.estimator for scripts that do not import us (roots/autoload) |
| CEREBRAS_EXECUTION_MODE | python-ws, csrun | `weight_streaming` or `pipelined`; default pipelined |
| CEREBRAS_HOME | user | folder of the simulated systems, jobs and settings; default `~/.cerebras` |
| CEREBRAS_TRACE_STEP | user | number of a training step to record: `<model_dir>/trace/step_<N>.json` and `.png` |
| CEREBRAS_TLS_CERT | user | certificate (PEM) of the server that serves a system from another host |
| CSAUTH_TOKEN | user | token for that server, as for csctl |
| CSRUN_INPUT_FOLDER | csrun | folder in which the chief finds the input workers and weight servers of its launch |
| CSRUN_INPUT_CPUS | cs_input_analyzer | numbers of CPUs with which to measure, such as `1,2` |
| CSRUN_INPUT_REPORT | cs_input_analyzer | file for the measured rate of the input pipeline; unset: no measurement |
| CSRUN_INPUT_WORKERS | csrun | number of input workers of the launch; 0: the chief computes its input itself |
| CSRUN_JOB_ID | csrun | number of the launch that a process belongs to |
| CSRUN_LAYOUT | csrun | JSON of the launch plan: nodes, tasks per node, single-task nodes |
| CSRUN_ROLE | csrun | role of this process: chief, weight_server, input_worker |
| CSRUN_TASK | csrun | rank of this process in the launch, from 0 |
| CSRUN_WEIGHT_SERVERS | csrun | number of weight servers of the launch; 0: the chief keeps the weights itself |
| SLURM_JOB_ID | Slurm | set: the processes of a launch may be on several nodes |
| SLURM_LAUNCH_NODE_IPADDR | Slurm | IP address of srun's node; servers listen on the interface that leads there |
| SKIP_CKPT_SIZE_CHECK | user | 1.4: `1` lets a pipelined run on a CS system exceed the limit of its checkpoints |
| TF_CONFIG | user; us, for input_fn | TensorFlow's JSON of the cluster and of this task |
| TF_CPP_MIN_LOG_LEVEL | user; us, by default 1 | least severity of TensorFlow's log lines; a user's value is kept |
| TF_USE_LEGACY_KERAS | user; us, for old scripts | TensorFlow's own: `1` makes tf.keras the same as tf_keras |
| TF_XLA_FLAGS | us, for use_xla | lets XLA compile for the CPU too |
| K8S_CS_IP | site | 1.7.1: if set, the run is on the CS system even without a cs_ip |
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

DEBUG = "CEREBRAS_DEBUG"
EXECUTION_MODE = "CEREBRAS_EXECUTION_MODE"
HOME = "CEREBRAS_HOME"
TRACE_STEP = "CEREBRAS_TRACE_STEP"
TLS_CERT = "CEREBRAS_TLS_CERT"
TOKEN = "CSAUTH_TOKEN"
INPUT_FOLDER = "CSRUN_INPUT_FOLDER"
INPUT_CPUS = "CSRUN_INPUT_CPUS"
INPUT_REPORT = "CSRUN_INPUT_REPORT"
INPUT_WORKERS = "CSRUN_INPUT_WORKERS"
JOB_ID = "CSRUN_JOB_ID"
LAYOUT = "CSRUN_LAYOUT"
ROLE = "CSRUN_ROLE"
TASK = "CSRUN_TASK"
WEIGHT_SERVERS = "CSRUN_WEIGHT_SERVERS"
SLURM_JOB_ID = "SLURM_JOB_ID"
SLURM_LAUNCH_ADDRESS = "SLURM_LAUNCH_NODE_IPADDR"
K8S_CS_IP = "K8S_CS_IP"
LEGACY_KERAS = "TF_USE_LEGACY_KERAS"
SKIP_CKPT_SIZE_CHECK = "SKIP_CKPT_SIZE_CHECK"
TF_CONFIG = "TF_CONFIG"

TF_LOG_LEVEL = "TF_CPP_MIN_LOG_LEVEL"
OUR_TF_LOG_LEVEL = "1"
"""Show warnings and errors only."""

XLA_FLAGS = "TF_XLA_FLAGS"
XLA_ON_CPU = "--tf_xla_cpu_global_jit"

PIPELINED = "pipelined"
WEIGHT_STREAMING = "weight_streaming"
EXECUTION_MODES = (PIPELINED, WEIGHT_STREAMING)


@dataclass(frozen=True)
class Environment:
    """The settings of this process from its environment."""

    execution_mode: str
    home: Path
    job_id: str | None
    role: str
    task: int
    k8s_cs_ip: str | None
    input_folder: Path | None = None
    input_workers: int = 0
    input_report: Path | None = None
    input_cpus: tuple[int, ...] = ()
    tls_certificate: Path | None = None
    token: str = ""
    weight_servers: int = 0
    is_under_slurm: bool = False
    slurm_launch_address: str | None = None
    trace_step: int = 0


def read(environ: Mapping[str, str] | None = None) -> Environment:
    """Return the typed environment.

    Args:
        environ: Variables to read; by default those of this process.

    Raises:
        ValueError: If a variable has a wrong value; the text names the variable and the expected values.
    """
    environ = os.environ if environ is None else environ
    mode = environ.get(EXECUTION_MODE, PIPELINED)
    if mode not in EXECUTION_MODES:
        raise ValueError(f"{EXECUTION_MODE}={mode!r}: expected one of {', '.join(EXECUTION_MODES)}")
    task = environ.get(TASK, "0")
    if not task.isdigit():
        raise ValueError(f"{TASK}={task!r}: expected a number from 0")
    counts = {name: environ.get(name, "0") for name in (INPUT_WORKERS, WEIGHT_SERVERS, TRACE_STEP)}
    for name, count in counts.items():
        if not count.isdigit():
            raise ValueError(f"{name}={count!r}: expected a number from 0")
    folder = environ.get(INPUT_FOLDER)
    return Environment(
        execution_mode=mode,
        home=Path(environ.get(HOME) or "~/.cerebras").expanduser(),
        job_id=environ.get(JOB_ID),
        role=environ.get(ROLE, "chief"),
        task=int(task),
        k8s_cs_ip=environ.get(K8S_CS_IP) or None,
        input_folder=Path(folder) if folder else None,
        input_workers=int(counts[INPUT_WORKERS]),
        input_cpus=_numbers(INPUT_CPUS, environ.get(INPUT_CPUS, "")),
        input_report=Path(environ[INPUT_REPORT]) if environ.get(INPUT_REPORT) else None,
        tls_certificate=Path(environ[TLS_CERT]) if environ.get(TLS_CERT) else None,
        token=environ.get(TOKEN, ""),
        weight_servers=int(counts[WEIGHT_SERVERS]),
        is_under_slurm=SLURM_JOB_ID in environ,
        slurm_launch_address=environ.get(SLURM_LAUNCH_ADDRESS) or None,
        trace_step=int(counts[TRACE_STEP]),
    )


def _numbers(name: str, text: str) -> tuple[int, ...]:
    words = [word for word in text.split(",") if word]
    if not all(word.isdigit() and int(word) > 0 for word in words):
        raise ValueError(f"{name}={text!r}: expected numbers from 1, separated by commas")
    return tuple(int(word) for word in words)


def is_debug() -> bool:
    """Whether our errors show their traceback."""
    return os.environ.get(DEBUG, "0") not in ("", "0")


def set_debug() -> None:
    """Make our errors show their traceback, in this process and in processes that it starts."""
    os.environ[DEBUG] = "1"


def has_tensorflow_log_level() -> bool:
    """Whether the user has set the least severity of TensorFlow's log lines."""
    return TF_LOG_LEVEL in os.environ


@contextmanager
def tensorflow_log_level() -> Iterator[None]:
    """Set the level of TensorFlow's log lines during its import only, so that child processes do not inherit it."""
    os.environ[TF_LOG_LEVEL] = OUR_TF_LOG_LEVEL
    try:
        yield
    finally:
        os.environ.pop(TF_LOG_LEVEL, None)


def allow_xla_on_cpu() -> None:
    """Let XLA compile for the CPU. TensorFlow reads the flags once, at its first session: call this before."""
    flags = os.environ.get(XLA_FLAGS, "")
    if XLA_ON_CPU not in flags:
        os.environ[XLA_FLAGS] = f"{flags} {XLA_ON_CPU}".strip()


def use_keras_2() -> None:
    """Make TensorFlow use Keras 2, unless the user has chosen a Keras. Call this before TensorFlow is imported."""
    os.environ.setdefault(LEGACY_KERAS, "1")


def is_keras_2() -> bool:
    """Whether the environment makes TensorFlow use Keras 2."""
    return os.environ.get(LEGACY_KERAS) in ("1", "true", "True")


def skips_checkpoint_size_check() -> bool:
    """Whether checkpoints of a pipelined run on a CS system may have any size."""
    return os.environ.get(SKIP_CKPT_SIZE_CHECK, "0") not in ("", "0")


def tf_config() -> dict[str, Any]:
    """Return TensorFlow's description of the cluster and of this task; empty if there is none.

    Raises:
        ValueError: If TF_CONFIG is not JSON.
    """
    text = os.environ.get(TF_CONFIG) or "{}"
    try:
        return dict(json.loads(text))
    except ValueError as error:
        raise ValueError(f"{TF_CONFIG}={text!r}: expected JSON with cluster and task ({error})") from error


@contextmanager
def as_input_worker() -> Iterator[None]:
    """Set TF_CONFIG, unless it is set, so that an input_fn sees itself in the only worker of a cluster.

    1.2 to 1.8 ran the input_fn in worker tasks with TF_CONFIG, and old input_fns shard their files by it. Here the
    input_fn must give the batches of the whole input, no matter which process computes them.
    """
    if TF_CONFIG in os.environ:
        yield
        return
    cluster = {"chief": ["localhost:23111"], "worker": ["localhost:23112"]}
    os.environ[TF_CONFIG] = json.dumps({"cluster": cluster, "task": {"type": "worker", "index": 0}})
    try:
        yield
    finally:
        del os.environ[TF_CONFIG]
