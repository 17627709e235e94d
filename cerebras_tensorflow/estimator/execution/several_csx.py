"""Several CSX (`num_csx`): how they share the batches of a step, and the start of their processes."""

from __future__ import annotations

import base64
import json
import os
import shutil
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from cerebras_tensorflow import files
from cerebras_tensorflow.compiler import cache
from cerebras_tensorflow.config import env
from cerebras_tensorflow.errors import CompileError, FolderInUseError, SettingsError, StoreError
from cerebras_tensorflow.estimator.config.cs_config import CSConfig
from cerebras_tensorflow.estimator.execution import store_choice
from cerebras_tensorflow.estimator.mode_keys import ModeKeys
from cerebras_tensorflow.estimator.model.model_call import INPUT_SECTIONS
from cerebras_tensorflow.graph.function_calls import reachable_functions
from cerebras_tensorflow.graph.program import Program
from cerebras_tensorflow.graph.variables import GENERATOR_OPS
from cerebras_tensorflow.logs import run_log
from cerebras_tensorflow.runtime.collectives import launch
from cerebras_tensorflow.runtime.collectives.interface import Collectives
from cerebras_tensorflow.runtime.collectives.placement import check_mpi
from cerebras_tensorflow.runtime.collectives.relay import SECRET_FILE
from cerebras_tensorflow.runtime.csx.copy_shares import CopyShares
from cerebras_tensorflow.runtime.csx.orders import FirstCsx
from cerebras_tensorflow.runtime.csx.peers import Answer, Peers
from cerebras_tensorflow.runtime.csx.shared_store import SharedStore
from cerebras_tensorflow.runtime.weight_store import owner
from cerebras_tensorflow.runtime.weight_store.interface import WeightStore
from cerebras_tensorflow.runtime.weight_store.shared_memory import SharedMemory

KEY = "global_batch_size"
FOLDER, INFERENCE_FOLDER = "csx", "csx_eval"  # in model_dir
SETTINGS_FILE, PROGRAM_FOLDER = "run.json", "program"
_MOST_INFERENCES = 16  # at the same time in one model_dir
_FOLDER_USE = owner.FolderUse("num_csx: the folder of the processes", "run on several CSX", "model_dir")
_PYTHON_CALLS = ("PyFunc", "EagerPyFunc", "PyFuncStateless")
_OWN_CALLS = b"cs_"  # start of the tokens of our own calls


class SharedBatches(Protocol):
    """An input whose batches several CSX share."""

    @property
    def batch_size(self) -> int:
        """Number of samples in a batch."""

    @property
    def is_fed(self) -> bool:
        """Whether the step gets its batches through placeholders."""

    def share(self, num_csx: int, is_global: bool) -> None:
        """Let CSX share the batches: each batch is split over all CSX, or each CSX takes one of `num_csx` batches."""


def num_csx_of(settings: CSConfig) -> int:
    """Return the number of CSX of a training run: the launcher's --num_csx, or else that of CSConfig."""
    asked = env.read().num_csx
    own = settings.num_csx or 1
    if asked and own > 1 and asked != own:
        run_log.warning("num_csx: csrun_wse --num_csx %d overrides %d of the run's own settings.", asked, own)
    return asked or own


def check_settings(settings: CSConfig, params: Any) -> None:
    """Check the needs of a training run on several CSX that do not depend on the model or the input.

    It runs before model_fn and before the first write.

    Raises:
        SettingsError: If MPI is not installed, or global_batch_size is not a positive number.
    """
    global_batch_size(params, ModeKeys.TRAIN)
    if num_csx_of(settings) > 1:
        check_mpi()


def check_inference(settings: CSConfig, params: Any, mode: str) -> None:
    """Check the needs of an evaluation or a prediction on several CSX, before model_fn and the first write.

    Raises:
        SettingsError: If MPI is not installed, or global_batch_size is not a positive number.
    """
    global_batch_size(params, mode)
    if num_csx_of(settings) > 1:
        check_mpi()


def share_batches(inputs: SharedBatches, settings: CSConfig, params: Any) -> None:
    """Let the CSX of a training run share the batches of its input.

    Raises:
        SettingsError: If the CSX cannot share the batches, or the batches do not match global_batch_size.
    """
    num_csx, size = num_csx_of(settings), global_batch_size(params, ModeKeys.TRAIN)
    if num_csx == 1 and size is None:
        return
    if not inputs.is_fed:
        raise SettingsError(
            f"num_csx is {num_csx}, but input_fn returns tensors of the model's graph, which only one CSX can read. "
            "Return the Dataset itself, or set num_csx to 1."
        )
    given = inputs.batch_size
    if size is not None and size not in (given, given * num_csx):
        raise SettingsError(
            f"global_batch_size is {size} and num_csx {num_csx}, but the batches of input_fn have {given} samples: "
            f"expected {size}, which are split over the CSX"
            + ("." if size % num_csx else f", or {size // num_csx}, one batch for each CSX.")
        )
    is_global = size == given and num_csx > 1
    inputs.share(num_csx, is_global)
    if num_csx > 1:
        whole = given if is_global else given * num_csx
        run_log.info("%d CSX: the global batch has %d samples.", num_csx, whole)


def global_batch_size(params: Any, mode: str) -> int | None:
    """Return global_batch_size of params' input section; None if it is not given.

    Raises:
        SettingsError: If it is not a positive number.
    """
    section = params.get(INPUT_SECTIONS[mode]) if isinstance(params, Mapping) else None
    value = section.get(KEY) if isinstance(section, Mapping) else None
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise SettingsError(f"{KEY} is {value!r}: expected a number of samples")
    return value


def check_program(program: Program) -> None:
    """Check that processes without model_fn can run a Program, and give it the bits of one CSX.

    Raises:
        CompileError: If it calls Python functions, or draws from a tf.random.Generator.
    """
    functions = reachable_functions(program.graph_def).values()
    for node in [*program.graph_def.node, *(node for function in functions for node in function.node_def)]:
        if node.op in _PYTHON_CALLS and not node.attr["token"].s.startswith(_OWN_CALLS):
            raise CompileError(
                f"num_csx: {node.name} ({node.op}) calls a Python function of this process, which other CSX do not "
                "have. Write it with TensorFlow's ops, move it into input_fn or host_call, or set num_csx to 1."
            )
        if node.op in GENERATOR_OPS:
            raise CompileError(
                f"num_csx: {node.name} ({node.op}) draws from a tf.random.Generator, of which each CSX would have one "
                "of its own: all would draw the same numbers. Use tf.random.uniform or tf.random.normal, or set "
                "num_csx to 1."
            )


@dataclass(frozen=True)
class CsxRequest:
    """What the other CSX of a run need.

    Attributes:
        program: The Program.
        train_node: Name of the train op; None: an evaluation or a prediction.
        setup: Name of the op that initializes tables.
        session_config: ConfigProto of their sessions.
        settings: The run's CSConfig.
        folder: Folder of the run on this machine.
        batches_per_step: Batches of the input in a step.
        others: The Programs of the other CSX, if they share the weights. Empty: all have the same one.
        store: The weight store of the first CSX; None if nothing is streamed.
    """

    program: Program
    train_node: str | None
    setup: str
    session_config: Any
    settings: CSConfig
    folder: str
    batches_per_step: int = 1
    others: Sequence[Program] = ()
    store: WeightStore | None = None


def start(request: CsxRequest, cleanup: ExitStack) -> FirstCsx | None:
    """Start the processes of the other CSX; return None if the Program is for one CSX.

    Args:
        request: What they need.
        cleanup: Gets callbacks that end them and release their folder.

    Raises:
        SettingsError: If MPI is not installed.
        CollectiveError: If the processes do not start.
        CompileError: If the model calls Python functions.
        StoreError: If another run uses their folder, or it or a file in it cannot be written.
    """
    program = request.program
    plan = program.micro_batches
    if plan is None or plan.num_csx == 1:
        return None
    check_program(program)
    folder = _new_folder(Path(request.folder).resolve() / FOLDER, cleanup)
    ranks = _start_processes(request, plan.num_csx, folder)
    store = None
    if request.store is not None and program.owners:
        store = SharedStore(program, ranks.rank, request.store, partial(connect, ranks, folder))
        cleanup.callback(store.close)
    shares = None
    if not program.owners:
        shares = CopyShares(ranks, partial(connect, ranks, folder))
        cleanup.callback(shares.close)
    first = FirstCsx(ranks, program, request.batches_per_step, store, request.settings.read_once, shares)
    cleanup.callback(first.close)
    return first


def start_inference(request: CsxRequest, num_csx: int, cleanup: ExitStack) -> Collectives:
    """Start the processes of the other CSX of an evaluation or a prediction; return this process's rank.

    Several of them may run in a model_dir at the same time, so each takes the first folder that no other one uses.

    Raises:
        SettingsError: If MPI is not installed.
        CollectiveError: If the processes do not start.
        StoreError: If a folder for them cannot be made, or the Program cannot be written for them.
    """
    for number in range(1, _MOST_INFERENCES + 1):
        name = INFERENCE_FOLDER if number == 1 else f"{INFERENCE_FOLDER}-{number}"
        with suppress(FolderInUseError):
            folder = _new_folder(Path(request.folder).resolve() / name, cleanup)
            return _start_processes(request, num_csx, folder)
    folder = _new_folder(Path(request.folder).resolve() / INFERENCE_FOLDER, cleanup)
    return _start_processes(request, num_csx, folder)


def _start_processes(request: CsxRequest, num_csx: int, folder: Path) -> Collectives:
    is_shared = bool(request.program.owners)
    for rank, one in enumerate(request.others if is_shared else [request.program], 1):
        place = folder / program_folder(rank, is_shared)
        if not cache.save(place, one, {}):
            raise StoreError(f"num_csx: the compiled program cannot be written to {place}: see the log")
    chosen = request.settings.weight_store_dir
    # Training and evaluation may run beside each other, so each has stores of its own. The user may choose a link.
    stores = Path(chosen).resolve() / folder.name if chosen else folder
    described = {
        "train_node": request.train_node,
        "setup": request.setup,
        "session_config": base64.b64encode(request.session_config.SerializeToString()).decode(),
        "stores": str(stores),
        "store_kind": store_choice.kind_of(request.store),
        "is_shared": is_shared,
    }
    with _starting(folder):
        files.write_text(folder / SETTINGS_FILE, json.dumps(described), 0o600, is_durable=False)
        run_log.info("Starting %d CSX; the logs of the others are %s.", num_csx, folder / "rank-*.log")
        module = "cerebras_tensorflow.estimator.execution.csx_member"
        return launch.start(num_csx, module, folder, env.read().csx_timeout_s)


@contextmanager
def _starting(folder: Path) -> Iterator[None]:
    """Turn an error of the system, such as a full disk, into one that names the folder of the processes.

    Raises:
        StoreError: Instead of an OSError.
    """
    try:
        yield
    except OSError as error:
        raise StoreError(f"num_csx: the CSX cannot start, with their files in {folder}: {error}") from error


def program_folder(rank: int, is_shared: bool) -> str:
    """Return the name of the folder with the Program of a CSX."""
    return f"{PROGRAM_FOLDER}-{rank}" if is_shared else PROGRAM_FOLDER


def connect(
    ranks: Collectives, folder: Path, answer: Answer, counted: Iterable[int], memory: SharedMemory | None
) -> Peers:
    """Return the connections of a CSX to the others.

    Args:
        ranks: The group of all CSX.
        folder: Folder of the processes, with the secret of the run.
        answer: Answers the requests of others.
        counted: Kinds of requests whose bytes are counted.
        memory: Memory that CSX on the same machine may read; None: there is none.

    Raises:
        StoreError: If the file with this CSX's address cannot be written.
    """
    with _starting(folder):
        secret = (folder / SECRET_FILE).read_bytes()
        return Peers(ranks.rank, folder, secret, answer, ranks.check, frozenset(counted), memory)


def _new_folder(folder: Path, cleanup: ExitStack) -> Path:
    """Make the private folder of the processes anew: what is in it may come from somebody else's model_dir.

    The run holds a lock on the folder until `cleanup`, so that another run does not remove its files.

    Raises:
        FolderInUseError: If another run uses it.
        StoreError: If it is a link or belongs to another user, or it cannot be made.
    """
    try:
        with suppress(FileExistsError):
            folder.mkdir(mode=0o700)
        found = os.lstat(folder)
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
            raise StoreError(
                f"num_csx: {folder} is not a folder of this user, or is a link: its files are not touched. "
                "Remove it, or choose another model_dir."
            )
        directory = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            os.fchmod(directory, 0o700)
            lock, _ = owner.take_lock(directory, folder, _FOLDER_USE)
        finally:
            os.close(directory)
        cleanup.callback(os.close, lock)
        _empty(folder)
        owner.write_owner(lock, 0, made_folder=True)
    except OSError as error:
        raise StoreError(f"num_csx: {folder} cannot be made: {error}") from error
    return folder


def _empty(folder: Path) -> None:
    """Remove all that is in a folder, except its lock."""
    with os.scandir(folder) as entries:
        for entry in list(entries):
            if entry.is_dir(follow_symlinks=False):
                shutil.rmtree(entry.path)
            elif entry.name != owner.OWNER:
                os.unlink(entry.path)
