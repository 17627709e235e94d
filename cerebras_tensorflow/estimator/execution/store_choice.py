"""Where a run keeps its streamed weights: in host memory, on the launch's weight servers, or in a file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from cerebras_tensorflow.estimator.config.cs_config import CSConfig
from cerebras_tensorflow.graph.program import Program, Residence
from cerebras_tensorflow.logs import run_log
from cerebras_tensorflow.runtime.csx.messages import FIRST
from cerebras_tensorflow.runtime.host.disk_space import Need, check_space, space_text
from cerebras_tensorflow.runtime.host.heap import return_large_buffers
from cerebras_tensorflow.runtime.host.memory import free_memory_bytes
from cerebras_tensorflow.runtime.weight_store import remote as weight_servers
from cerebras_tensorflow.runtime.weight_store.file import FileStore
from cerebras_tensorflow.runtime.weight_store.folder import remove_left_stores
from cerebras_tensorflow.runtime.weight_store.interface import WeightStore
from cerebras_tensorflow.runtime.weight_store.mapped import MappedStore
from cerebras_tensorflow.runtime.weight_store.memory import MemoryStore
from cerebras_tensorflow.units import format_bytes

MEMORY_SHARE = 0.25
"""If the weights take less than this share of free memory, "auto" means memory, and "file" a mapped file."""


_TOLD_FROM_BYTES = 1_000_000_000  # of disk space; a small model's log stays as it was


def choose_residence(weight_bytes: int, settings: CSConfig, is_shared: bool = False) -> Residence:
    """Return where a weight-streaming run keeps its weights between their uses.

    Args:
        weight_bytes: Size of all weights of the model.
        settings: The user's choice of weight store, and the memory budget.
        is_shared: Whether several CSX hold the weights once, so that each one moves those of the others.
    """
    memory = Residence.MEMORY_STORE if is_shared else Residence.HOST_MEMORY
    if settings.weight_store == "memory":
        return memory
    if _fit_into_memory(weight_bytes, settings):
        if settings.weight_store == "auto":
            return memory
        if settings.weight_store == "file":
            return Residence.MAPPED_FILE
    return Residence.STORE


def _fit_into_memory(weight_bytes: int, settings: CSConfig) -> bool:
    return settings.memory_budget is None and weight_bytes < MEMORY_SHARE * free_memory_bytes()


def open_store(
    program: Program, settings: CSConfig, model_dir: str, is_training: bool = False, copies: int = 1
) -> WeightStore | None:
    """Return the weight store of a Program; None if it needs none.

    The file store of a training run is in `weight_store_dir`. Other runs use a subfolder, so that a model can be
    evaluated while it is trained. If several CSX share the weights, this is the store of the first one.

    Args:
        program: The Program.
        settings: The user's choice of weight store.
        model_dir: Folder of the model on this machine.
        is_training: Whether this is a training run.
        copies: Number of CSX that will each open a store of the same kind with all weights.

    Raises:
        StoreError: If the disks have no room for the weights or, in training, for a checkpoint. Or if another run uses
            the store's folder.
    """
    checkpoint = Need("a checkpoint", Path(model_dir), program.weight_bytes, "model_dir")
    needs = [checkpoint] if is_training else []
    check_space(needs)
    if not program.needs_store:
        _tell(needs)
        return None
    specs = program.stored_by(FIRST)
    if settings.weight_store in ("auto", "servers"):
        servers = weight_servers.start_weight_servers()
        needed = copies * sum(spec.num_bytes for spec in program.stored)
        if settings.weight_store == "servers" or weight_servers.have_room(servers, needed):
            _tell(needs)
            return weight_servers.ServerStore(specs, servers)
    if program.residence is Residence.MEMORY_STORE:
        return MemoryStore(specs, is_shared=bool(program.owners))
    folder = _store_folder(settings, model_dir)
    folder = folder if is_training else folder / "other"
    stored_bytes = sum(spec.num_bytes for spec in program.stored)
    _tell([Need("the weight store", folder, stored_bytes, "weight_store_dir"), *needs])
    plan = program.micro_batches
    return _file_store(program, FIRST, folder, needs, max(copies, plan.num_csx if plan is not None else 1))


def remove_left(settings: CSConfig, model_dir: str) -> None:
    """Remove the file stores that killed runs left. A next run may have another store, or nothing to train."""
    remove_left_stores(_store_folder(settings, model_dir))


def _store_folder(settings: CSConfig, model_dir: str) -> Path:
    # Follow a symbolic link that the user chose. The store refuses links inside a model_dir.
    chosen = settings.weight_store_dir
    return Path(chosen).resolve() if chosen else Path(model_dir).resolve() / "weight_store"


def open_share(program: Program, rank: int, like: str, folder: Path, num_csx: int) -> WeightStore | None:
    """Return the store of a CSX after the first one; None if it needs none.

    Args:
        program: Its Program.
        rank: Its number.
        like: The kind of the first one's store, from `kind_of`.
        folder: Folder of a file store.
        num_csx: Number of CSX, which may all be on this machine.

    Raises:
        StoreError: If the disk has no room, or the weight servers do not answer.
    """
    if not program.needs_store:
        return None
    if like == "servers":
        return weight_servers.ServerStore(program.stored_by(rank), weight_servers.start_weight_servers())
    if like == "memory":
        return MemoryStore(program.stored_by(rank), is_shared=bool(program.owners))
    return _file_store(program, rank, folder, [], num_csx)


def kind_of(store: WeightStore | None) -> str:
    """Return the kind of a store: "memory", "file" or "servers"."""
    if isinstance(store, MemoryStore):
        return "memory"
    return "file" if store is None or isinstance(store, (FileStore, MappedStore)) else "servers"


def _file_store(program: Program, rank: int, folder: Path, needs: Sequence[Need], num_csx: int) -> WeightStore:
    specs = program.stored_by(rank)
    if program.residence is Residence.MAPPED_FILE:
        return MappedStore(specs, folder, needs)
    return_large_buffers()
    reads = program.bytes_read_of_each
    held = [reads[index] for index in range(len(reads)) if program.is_held_by(rank, index)]
    store = FileStore(specs, folder, beside=needs, reads=held, num_stores=num_csx)
    if store.is_direct and store.cached_bytes >= _TOLD_FROM_BYTES:
        run_log.info(
            "Spare memory keeps up to %s of the weights, those that a step reads most. Other programs may take it.",
            format_bytes(store.cached_bytes),
        )
    return store


def _tell(needs: Sequence[Need]) -> None:
    """Log the disk space that a run needs, if it is much."""
    if sum(need.num_bytes for need in needs) >= _TOLD_FROM_BYTES:
        run_log.info("%s", space_text(needs))
