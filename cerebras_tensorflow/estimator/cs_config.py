"""CSConfig: settings of the cluster and, ours, of the weight store."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from cerebras_tensorflow.errors import SettingsError

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

    def __post_init__(self) -> None:
        if self.weight_store not in STORES:
            raise SettingsError(f"weight_store is {self.weight_store!r}: expected one of {', '.join(STORES)}")
        for name in ("stream_window_bytes", "min_stream_bytes"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, int) or value < 0):
                raise SettingsError(f"{name} is {value!r}: expected a number of bytes, 0 or more")
