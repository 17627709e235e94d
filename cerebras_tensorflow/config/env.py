"""Every environment variable that we read or set, in one table. No other module reads settings from os.environ.

| variable | set by | meaning |
|---|---|---|
| AWS_ENDPOINT_URL, AWS_ENDPOINT_URL_S3 | user | an S3-compatible server; obstore itself reads the keys of s3, gs, az |
| AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN | user | keys of s3, also for a sweep of uploads |
| AZURE_STORAGE_ENDPOINT | user | an Azure-compatible server, such as Azurite |
| AWS_REGION, AWS_DEFAULT_REGION | user | the bucket's region; counts before that of a profile |
| AWS_PROFILE | user | section of the AWS tools' files with keys, region, endpoint; unused with AWS_ACCESS_KEY_ID |
| AWS_CONFIG_FILE, AWS_SHARED_CREDENTIALS_FILE | user | these files; default `~/.aws/config` and `~/.aws/credentials` |
| CEREBRAS_CSX_NETWORK | user | how CSX on several nodes exchange bytes: `tcp` (default, with authentication) or `mpi` |
| CEREBRAS_CSX_TIMEOUT_S | user | how long one of several CSX may give no sign of life; default 60 seconds |
| CEREBRAS_DEBUG | user; --debug | `1` shows the traceback of our own errors, not only their text |
| CEREBRAS_TF_CONFIG_NETWORKS | user | networks that a `TF_CONFIG` cluster admits beside its tasks: `10.0.0.0/8` |
| CEREBRAS_TENSORFLOW_AUTOLOAD | user | `0`: no tf.estimator for scripts that do not import us (roots/autoload) |
| CEREBRAS_EXECUTION_MODE | python-ws, csrun | `weight_streaming` or `pipelined`; default pipelined |
| CEREBRAS_HOME | user | folder of the simulated systems, jobs and settings; default `~/.cerebras` |
| CEREBRAS_REPORT | user | `0`: runs and compilations write no `report.html`; default 1, which needs plotly |
| CEREBRAS_TRACE_STEP | user | number of a training step to record: `<model_dir>/trace/step_<N>.json` and `.png` |
| CEREBRAS_TLS_CERT | user | certificate (PEM) of the server that serves a system from another host |
| CSAUTH_TOKEN | user | token for that server, as for csctl |
| CSRUN_CHECK_ONLY | csrun | `1`: a reference model checks its options and params, then exits |
| CSRUN_INPUT_FOLDER | csrun | folder in which the chief finds the input workers and weight servers of its launch |
| CSRUN_INPUT_CPUS | cs_input_analyzer | numbers of CPUs with which to measure, such as `1,2` |
| CSRUN_INPUT_REPORT | cs_input_analyzer | file for the measured rate of the input pipeline; unset: no measurement |
| CSRUN_INPUT_WORKERS | csrun | number of input workers of the launch; 0: the chief computes its input itself |
| CSRUN_JOB_ID | csrun | number of the launch that a process belongs to |
| CSRUN_LAYOUT | csrun | JSON of the launch plan: nodes, tasks per node, single-task nodes |
| CSRUN_NUM_CSX | csrun | number of CSX of the launch, from --num_csx; unset: the run's own settings decide |
| CSRUN_PROGRESS | csrun | columns of the launcher's terminal, which shows progress (0: none), and the pipe to it |
| CSRUN_ROLE | csrun | role of this process: chief, weight_server, input_worker |
| CSRUN_TASK | csrun | rank of this process in the launch, from 0 |
| CSRUN_WEIGHT_SERVERS | csrun | number of weight servers of the launch; 0: the chief keeps the weights itself |
| SLURM_JOB_ID | Slurm | set: the processes of a launch may be on several nodes |
| SLURM_JOB_NODELIST, SLURMD_NODENAME | Slurm | the nodes of the job, where CSX run, and the node of this process |
| SLURM_PROCID, SLURM_NTASKS | Slurm | rank and number of ranks of CSX on several nodes |
| SLURM_LAUNCH_NODE_IPADDR | Slurm | IP address of srun's node; servers listen on the interface that leads there |
| SKIP_CKPT_SIZE_CHECK | user | 1.4: `1` lets a pipelined run on a CS system exceed the limit of its checkpoints |
| TF_CONFIG | user; us, for input_fn | TensorFlow's JSON of the cluster and of this task |
| TF_CPP_MIN_LOG_LEVEL | user; us, by default 1 | least severity of TensorFlow's log lines; a user's value is kept |
| TF_USE_LEGACY_KERAS | user; us, for old scripts | TensorFlow's own: `1` makes tf.keras the same as tf_keras |
| XDG_CACHE_HOME | user | folder of caches, default `~/.cache`: work folders of runs whose model_dir is a URL |
| TF_XLA_FLAGS | us, for use_xla | lets XLA compile for the CPU too |
| K8S_CS_IP | site | 1.7.1: if set, the run is on the CS system even without a cs_ip |
"""

from __future__ import annotations

import configparser
import ipaddress
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cerebras_tensorflow.text import is_number, printable

CSX_NETWORK = "CEREBRAS_CSX_NETWORK"
CSX_TIMEOUT_S = "CEREBRAS_CSX_TIMEOUT_S"
DEBUG = "CEREBRAS_DEBUG"
EXECUTION_MODE = "CEREBRAS_EXECUTION_MODE"
HOME = "CEREBRAS_HOME"
REPORT = "CEREBRAS_REPORT"
TF_CONFIG_NETWORKS = "CEREBRAS_TF_CONFIG_NETWORKS"
TRACE_STEP = "CEREBRAS_TRACE_STEP"
TLS_CERT = "CEREBRAS_TLS_CERT"
TOKEN = "CSAUTH_TOKEN"
CHECK_ONLY = "CSRUN_CHECK_ONLY"
INPUT_FOLDER = "CSRUN_INPUT_FOLDER"
INPUT_CPUS = "CSRUN_INPUT_CPUS"
INPUT_REPORT = "CSRUN_INPUT_REPORT"
INPUT_WORKERS = "CSRUN_INPUT_WORKERS"
NUM_CSX = "CSRUN_NUM_CSX"
JOB_ID = "CSRUN_JOB_ID"
LAYOUT = "CSRUN_LAYOUT"
PROGRESS = "CSRUN_PROGRESS"
ROLE = "CSRUN_ROLE"
TASK = "CSRUN_TASK"
WEIGHT_SERVERS = "CSRUN_WEIGHT_SERVERS"
SLURM_JOB_ID = "SLURM_JOB_ID"
SLURM_NODE = "SLURMD_NODENAME"
SLURM_NODES = "SLURM_JOB_NODELIST"
SLURM_RANK = "SLURM_PROCID"
SLURM_RANKS = "SLURM_NTASKS"
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
TCP = "tcp"
MPI = "mpi"


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
    slurm_nodes: str | None = None
    slurm_node: str | None = None
    trace_step: int = 0
    writes_report: bool = True
    num_csx: int = 0
    csx_timeout_s: int = 60
    csx_network: str = TCP
    slurm_rank: int = 0
    slurm_ranks: int = 1
    tf_config_networks: tuple[ipaddress.IPv4Network | ipaddress.IPv6Network, ...] = ()


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
    if not is_number(task):
        raise ValueError(f"{TASK}={task!r}: expected a number from 0")
    counts = {name: environ.get(name, "0") for name in (INPUT_WORKERS, WEIGHT_SERVERS, TRACE_STEP, NUM_CSX)}
    counts[CSX_TIMEOUT_S] = environ.get(CSX_TIMEOUT_S) or "60"
    counts |= {SLURM_RANK: environ.get(SLURM_RANK) or "0", SLURM_RANKS: environ.get(SLURM_RANKS) or "1"}
    network = environ.get(CSX_NETWORK) or TCP
    if network not in (TCP, MPI):
        raise ValueError(f"{CSX_NETWORK}={network!r}: expected {TCP} or {MPI}")
    for name, count in counts.items():
        if not is_number(count):
            raise ValueError(f"{name}={count!r}: expected a number from 0")
    folder = environ.get(INPUT_FOLDER)
    return Environment(
        execution_mode=mode,
        home=_home(environ.get(HOME) or "~/.cerebras"),
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
        slurm_nodes=environ.get(SLURM_NODES) or None,
        slurm_node=environ.get(SLURM_NODE) or None,
        trace_step=int(counts[TRACE_STEP]),
        writes_report=environ.get(REPORT, "1") != "0",
        num_csx=int(counts[NUM_CSX]),
        csx_timeout_s=int(counts[CSX_TIMEOUT_S]),
        csx_network=network,
        slurm_rank=int(counts[SLURM_RANK]),
        slurm_ranks=int(counts[SLURM_RANKS]),
        tf_config_networks=_networks(TF_CONFIG_NETWORKS, environ.get(TF_CONFIG_NETWORKS, "")),
    )


def _home(text: str) -> Path:
    try:
        home = Path(text).expanduser()
        if printable(str(home)) != str(home):  # job records hold its path, in UTF-8
            raise ValueError(f"{HOME} is {printable(str(home))}, which is not UTF-8 text; set it to another folder")
        return home
    except RuntimeError as exc:  # for example in a container under a user without an account
        raise ValueError(
            f"{HOME} is not set, and this user has no home folder; set it to a folder that you own"
        ) from exc


def _numbers(name: str, text: str) -> tuple[int, ...]:
    words = [word for word in text.split(",") if word]
    if not all(is_number(word) and int(word) > 0 for word in words):
        raise ValueError(f"{name}={text!r}: expected numbers from 1, separated by commas")
    return tuple(int(word) for word in words)


def _networks(name: str, text: str) -> tuple[ipaddress.IPv4Network | ipaddress.IPv6Network, ...]:
    try:
        return tuple(ipaddress.ip_network(word.strip()) for word in text.split(",") if word.strip())
    except ValueError as exc:
        raise ValueError(f"{name}={text!r}: expected networks such as 10.0.0.0/8,fd00::/8 ({exc})") from exc


def is_debug() -> bool:
    """Whether our errors show their traceback."""
    return os.environ.get(DEBUG, "0") not in ("", "0")


def set_debug() -> None:
    """Make our errors show their traceback, in this process and in processes that it starts."""
    os.environ[DEBUG] = "1"


def is_check_only() -> bool:
    """Whether the launcher asks a reference model only to check its options and params."""
    return CHECK_ONLY in os.environ


def launcher_columns(stream: int) -> int:
    """Return the columns of the launcher's terminal, which shows progress lines; 0 if there is none.

    Args:
        stream: Descriptor of the stream to write to. If it is not the launcher's pipe, for example because a shell has
            redirected it, the result is 0.
    """
    columns, _, pipe = os.environ.get(PROGRESS, "").partition(" ")
    return int(columns) if is_number(columns) and pipe == _identity(stream) else 0


def progress_through(stream: int, columns: str) -> str:
    """Return the value of CSRUN_PROGRESS for a child.

    Args:
        stream: Descriptor of the child's standard error, which leads to the launcher.
        columns: The launcher's columns, or its value of CSRUN_PROGRESS.
    """
    return f"{columns.partition(' ')[0]} {_identity(stream)}"


def _identity(stream: int) -> str:
    status = os.fstat(stream)
    return f"{status.st_dev}:{status.st_ino}"


def shows_all_tensorflow_lines() -> bool:
    """Whether the user asks for every log line of TensorFlow, from severity 0 on."""
    return os.environ.get(TF_LOG_LEVEL) == "0"


@contextmanager
def tensorflow_log_level() -> Iterator[None]:
    """Set the level of TensorFlow's log lines only during its import, so that child processes do not inherit it.

    A level that the user has set does not change.
    """
    if TF_LOG_LEVEL in os.environ:
        yield
        return
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


def cache_folder() -> str:
    """Return our folder of files that can be made again."""
    stated = os.environ.get("XDG_CACHE_HOME", "")
    return os.path.join(stated if os.path.isabs(stated) else os.path.expanduser("~/.cache"), "cerebras_tensorflow")


def object_storage(scheme: str) -> dict[str, str]:
    """Return the settings for a scheme that obstore does not read from the environment itself.

    For s3 these are the endpoint, from the variables of the AWS tools, and the keys of a profile. `allow_http` is set
    if the endpoint of s3 or az has no TLS, and always for gs.
    """
    if scheme == "az" and os.environ.get("AZURE_STORAGE_ENDPOINT", "").startswith("http://"):
        return {"endpoint": os.environ["AZURE_STORAGE_ENDPOINT"], "allow_http": "1"}
    if scheme == "gs":
        return {"allow_http": "1"}  # as obstore by default: only `gcs_base_url` of a service account leads elsewhere
    if scheme != "s3":
        return {}
    settings = {} if os.environ.get("AWS_ACCESS_KEY_ID") else _aws_profile()
    stated = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
    endpoint = stated or settings.get("endpoint")
    if endpoint:
        settings |= {"endpoint": endpoint, **({"allow_http": "1"} if endpoint.startswith("http://") else {})}
    return settings


_S3_KEYS = ("access_key_id", "secret_access_key", "session_token")


@dataclass(frozen=True)
class S3Account:
    """What a request to s3 needs that obstore does not make.

    Attributes:
        endpoint: URL of the server.
        region: The bucket's region.
        key_id, secret: The keys; empty if only the machine's role has some.
        token: Of keys for a limited time; else empty.
    """

    endpoint: str
    region: str
    key_id: str
    secret: str = field(repr=False)
    token: str = field(default="", repr=False)


def s3_account() -> S3Account:
    """Return the server and the keys for s3."""
    settings = object_storage("s3")
    region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION") or settings.get("region", "us-east-1")
    stated = {name: os.environ.get(f"AWS_{name.upper()}", "") for name in _S3_KEYS}
    keys = (settings.get(name, "") for name in _S3_KEYS) if "access_key_id" in settings else stated.values()
    return S3Account(settings.get("endpoint", f"https://s3.{region}.amazonaws.com"), region, *keys)


def _aws_profile() -> dict[str, str]:
    """Return the settings of the chosen profile, from both files of the AWS tools; a region only if none is set."""
    name = os.environ.get("AWS_PROFILE") or "default"
    names = {
        "aws_access_key_id": "access_key_id",
        "aws_secret_access_key": "secret_access_key",
        "aws_session_token": "session_token",
        "region": "region",
        "endpoint_url": "endpoint",
    }
    settings: dict[str, str] = {}
    for variable, file, section in (
        ("AWS_CONFIG_FILE", "config", name if name == "default" else f"profile {name}"),
        ("AWS_SHARED_CREDENTIALS_FILE", "credentials", name),
    ):
        parser = configparser.ConfigParser(interpolation=None)
        # RuntimeError: this user has no home folder.
        with suppress(configparser.Error, OSError, UnicodeDecodeError, RuntimeError):
            parser.read(Path(os.environ.get(variable) or Path.home() / ".aws" / file), encoding="utf-8")
        if parser.has_section(section):
            settings |= {names[key]: value for key, value in parser.items(section) if key in names}
    if os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION"):
        settings.pop("region", None)
    return settings


def tf_config() -> dict[str, Any]:
    """Return TensorFlow's description of the cluster and of this task; empty if there is none.

    Raises:
        ValueError: If TF_CONFIG is not a JSON object.
    """
    text = os.environ.get(TF_CONFIG) or "{}"
    try:
        value = json.loads(text)
    except ValueError as error:
        raise ValueError(f"{TF_CONFIG}={text!r}: expected a JSON object with cluster and task ({error})") from error
    if not isinstance(value, dict):
        raise ValueError(f"{TF_CONFIG}={text!r}: expected a JSON object with cluster and task")
    return value


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
