"""CSConfig: settings of the cluster and, ours, of the weight store."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from cerebras_tensorflow.errors import SettingsError
from cerebras_tensorflow.units import parse_size

STORES = ("auto", "memory", "servers", "file")


@dataclass
class CSConfig:
    """Settings of a run on a CS system.

    Fields up to `use_cbfloat16` are the original's (1.6 to 1.8); scripts may set all of them. On the simulated system
    one machine plays all roles, so they change nothing.

    Attributes:
        weight_store: "memory", "servers" (the launch's weight servers), "file", or "auto": memory while the weights
            take less than a quarter of the free one, else servers while they take less than half of theirs, else file.
        weight_store_dir: Folder of the file store; None: `<model_dir>/weight_store`.
        stream_window_bytes: Bytes of weights in memory at a time; None: chosen from their sizes, at least 64 MB.
        memory_budget: Most memory that the process may take, as bytes or as text ("4GB"): what does not fit is spilled
            to the weight store, and a step that cannot be done within it is refused with the smallest budget that
            would do. None: no limit.
        min_stream_bytes: Variables smaller than this stay in memory.
        use_xla: Compile clusters of ops with XLA. Pipelined only; the results then differ from weight streaming's in
            the last bits.

    Raises:
        SettingsError: If a value of ours is out of range.
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

    def __post_init__(self) -> None:
        if self.weight_store not in STORES:
            raise SettingsError(f"weight_store is {self.weight_store!r}: expected one of {', '.join(STORES)}")
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
        for name in ("stream_window_bytes", "min_stream_bytes", "memory_budget"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, int) or value < 0):
                raise SettingsError(f"{name} is {value!r}: expected a number of bytes, 0 or more")
