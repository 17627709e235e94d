"""Where a run keeps its streamed weights: in host memory, on the launch's weight servers, or in a file."""

from __future__ import annotations

from pathlib import Path

from cerebras_tensorflow.estimator.config.cs_config import CSConfig
from cerebras_tensorflow.graph.program import Program, Residence
from cerebras_tensorflow.runtime.host.disk_space import Need, check_space
from cerebras_tensorflow.runtime.host.heap import return_large_buffers
from cerebras_tensorflow.runtime.host.memory import free_memory_bytes
from cerebras_tensorflow.runtime.weight_store.file import FileStore
from cerebras_tensorflow.runtime.weight_store.interface import WeightStore
from cerebras_tensorflow.runtime.weight_store.mapped import MappedStore

MEMORY_SHARE = 0.25
"""If the weights take less than this share of free memory, "auto" means memory, and "file" a mapped file."""


def choose_residence(weight_bytes: int, settings: CSConfig) -> Residence:
    """Return where a weight-streaming run keeps its weights between their uses.

    Args:
        weight_bytes: Size of all weights of the model.
        settings: The user's choice of weight store, and the memory budget.
    """
    if settings.weight_store == "memory":
        return Residence.HOST_MEMORY
    if settings.memory_budget is None and weight_bytes < MEMORY_SHARE * free_memory_bytes():
        if settings.weight_store == "auto":
            return Residence.HOST_MEMORY
        if settings.weight_store == "file":
            return Residence.MAPPED_FILE
    return Residence.STORE


def open_store(program: Program, settings: CSConfig, model_dir: str, is_training: bool = False) -> WeightStore | None:
    """Return the weight store of a Program; None if it needs none.

    The file store of a training run is in `weight_store_dir`. Other runs use a subfolder, so that a model can be
    evaluated while it is trained.

    Raises:
        StoreError: If the disks have no room for the weights or, in training, for a checkpoint. Or if another run uses
            the store's folder.
    """
    checkpoint = Need("a checkpoint", Path(model_dir), program.weight_bytes, "model_dir")
    needs = [checkpoint] if is_training else []
    check_space(needs)
    if not program.needs_store:
        return None
    if settings.weight_store != "file":
        from cerebras_tensorflow.runtime.weight_store import remote as weight_servers  # imports gRPC

        servers = weight_servers.start_weight_servers()
        needed = sum(spec.num_bytes for spec in program.stored)
        if settings.weight_store == "servers" or weight_servers.have_room(servers, needed):
            return weight_servers.ServerStore(program.stored, servers)
    # Follow a symbolic link that the user chose. The store refuses links inside a model_dir.
    chosen = settings.weight_store_dir
    folder = Path(chosen).resolve() if chosen else Path(model_dir).resolve() / "weight_store"
    folder = folder if is_training else folder / "other"
    if program.residence is Residence.MAPPED_FILE:
        return MappedStore(program.stored, folder, needs)
    return_large_buffers()
    return FileStore(program.stored, folder, beside=needs)
