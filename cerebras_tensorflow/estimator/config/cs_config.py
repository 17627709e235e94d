"""CSConfig: settings of the cluster, and our own settings of the weight store."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from cerebras_tensorflow.errors import SettingsError
from cerebras_tensorflow.locations import local_path
from cerebras_tensorflow.perf.profile import profiler_settings
from cerebras_tensorflow.units import parse_size

STORES = ("auto", "memory", "servers", "file")


@dataclass
class CSConfig:
    """Settings of a run on a CS system.

    Fields up to `use_cbfloat16` are those of the original (1.6 to 1.8). Scripts may set them. Except
    `num_csx` and `num_workers_per_csx` they have no effect: on the simulated system one machine plays all roles.

    Attributes:
        num_csx: CSX that share the batches of a training run. Each takes one of `num_csx` consecutive batches of the
            input; with `global_batch_size` in params' train_input, they split each batch. None: 1.
        num_workers_per_csx: Input workers of each CSX, of those that the launch has. None or 0: all of them.
        weight_store: "memory", "servers" (the launch's weight servers), "file", or "auto". "auto" chooses memory if the
            weights fit in a quarter of free memory, else servers if they fit in half of the servers' memory, else file.
        weight_store_dir: Folder of the file store; None: `<model_dir>/weight_store`.
        stream_window_bytes: Bytes of streamed weights in memory at a time; None: chosen from their sizes, at least
            64 MB.
        memory_budget: Memory limit of the process, in bytes or as text ("4GB"). Values that do not fit are spilled to
            the weight store. If a step cannot fit, the error names the smallest budget that works. None: no limit.
        min_stream_bytes: Variables smaller than this stay in memory.
        micro_batch_size: Samples to compute at a time. A step adds up the gradients of all micro-batches, then updates
            once. A number that divides the batch size; "none" or None: the whole batch; "auto": the largest
            size that lets the step fit into memory_budget; "explore" or {"explore": {"min": 1, "max": 8}}: only for
            compile, which compares all sizes. `micro_batch_size` in params' train_input, eval_input or
            predict_input overrides it.
        allow_oversize: Go on, without a placement, with a model that does not fit on the simulated wafer. Otherwise a
            run on a CS system refuses it; a run on the CPU alone never does.
        model_summary: Log the layers of each compiled step: shapes, parameters, operations, where each weight lives.
        op_profiler_config: Steps to profile, as {"start_step": 3, "end_step": 5}, counted from the first step of the
            run. It writes chrome_trace.json into model_dir and logs the ten slowest layers.
        read_once: On several CSX, one reads a checkpoint and sends the values to the others, so the storage is read
            once. With False each CSX reads the values that it needs itself, at the same time as the others.
        use_xla: Compile clusters of ops with XLA, in pipelined mode only. The last bits of the results then differ from
            those of weight streaming.

    Raises:
        SettingsError: If one of our own settings is out of range.
    """

    num_csx: int | None = 1
    max_wgt_servers: int | None = None
    max_act_per_csx: int | None = None
    mgmt_address: str | None = None
    mgmt_namespace: str | None = None
    credentials_path: str | None = None
    debug_args: Any = None
    mount_dirs: list[str] | None = None
    python_paths: list[str] | None = None
    transfer_processes: int | None = None
    num_workers_per_csx: int | None = None
    execution_strategy: Any = None
    job_labels: list[str] | None = field(default=None)
    job_time_sec: int | None = None
    disable_version_check: bool | None = None
    volume_mounts: Any = None
    use_cbfloat16: bool = False
    weight_store: str = "auto"
    weight_store_dir: str | None = None
    stream_window_bytes: int | None = None
    min_stream_bytes: int = 64 * 1024
    use_xla: bool = False
    memory_budget: int | str | None = None
    micro_batch_size: int | str | dict[str, dict[str, int]] | None = None
    allow_oversize: bool = False
    model_summary: bool = False
    op_profiler_config: dict[str, Any] | None = None
    read_once: bool = True

    def __post_init__(self) -> None:
        if self.weight_store not in STORES:
            raise SettingsError(f"weight_store is {self.weight_store!r}: expected one of {', '.join(STORES)}")
        if self.weight_store_dir is not None:
            self.weight_store_dir = local_path(self.weight_store_dir)
        if isinstance(self.memory_budget, str):
            try:
                self.memory_budget = parse_size(self.memory_budget)
            except ValueError as error:
                raise SettingsError(f"memory_budget: {error}") from None
        if self.memory_budget is not None and self.weight_store == "memory":
            raise SettingsError(
                "memory_budget is given and weight_store is memory, which keeps all weights in memory; set "
                "weight_store to auto, file or servers"
            )
        check_micro_batch_size(self.micro_batch_size)
        if self.num_csx is not None and not _is_count(self.num_csx):
            raise SettingsError(f"num_csx is {self.num_csx!r}: expected the number of CSX, 1 or more")
        profiler_settings(self.op_profiler_config)
        if not isinstance(self.read_once, bool):
            raise SettingsError(f"read_once is {self.read_once!r}: expected true or false")
        for name in ("stream_window_bytes", "min_stream_bytes", "memory_budget"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, int) or value < 0):
                raise SettingsError(f"{name} is {value!r}: expected a number of bytes, 0 or more")


def check_micro_batch_size(value: object) -> None:
    """Check a setting of micro_batch_size.

    Raises:
        SettingsError: If it is not one of the documented values.
    """
    if isinstance(value, dict) and list(value) == ["explore"]:
        limits = value["explore"]
        if isinstance(limits, dict) and set(limits) <= {"min", "max"} and all(map(_is_count, limits.values())):
            return
    if value is None or value in ("auto", "none", "explore") or _is_count(value):
        return
    raise SettingsError(
        f"micro_batch_size is {value!r}: expected a number of samples, auto, none, explore or "
        "{explore: {min: NUMBER, max: NUMBER}}"
    )


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0
