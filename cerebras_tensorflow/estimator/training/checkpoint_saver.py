"""Saving the variables of a run while it trains."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from functools import partial
from types import TracebackType
from typing import Any, TypeAlias

import numpy as np

from cerebras_tensorflow.config import env
from cerebras_tensorflow.config.env import WEIGHT_STREAMING
from cerebras_tensorflow.errors import CheckpointError, StoreError
from cerebras_tensorflow.estimator.config.run_settings import RunSettings
from cerebras_tensorflow.estimator.execution.owners_write import OwnersWrite
from cerebras_tensorflow.estimator.model.partitions import PartKey, Wholes
from cerebras_tensorflow.estimator.model.scaffold import Layout
from cerebras_tensorflow.estimator.uploads import upload_files
from cerebras_tensorflow.logs import run_log, run_progress
from cerebras_tensorflow.progress import Progress
from cerebras_tensorflow.runtime.host.memory import free_memory_bytes
from cerebras_tensorflow.runtime.session import ProgramSession
from cerebras_tensorflow.runtime.session_snapshot import SessionSnapshot
from cerebras_tensorflow.runtime.weight_store.snapshot import OwnedElsewhere
from cerebras_tensorflow.saver import integrity
from cerebras_tensorflow.saver import names as checkpoint_names
from cerebras_tensorflow.saver.checkpoint_writer import open_writer
from cerebras_tensorflow.saver.interface import TensorWriter
from cerebras_tensorflow.saver.model_dir import retention
from cerebras_tensorflow.saver.model_dir.async_writer import AsynchronousWriter
from cerebras_tensorflow.units import format_bytes

_MEMORY_SHARE = 0.5  # of free memory, for the copies of a save

# Name, dtype, shape, and an array or the pieces of its bytes.
NamedValue: TypeAlias = tuple[str, np.dtype, tuple[int, ...], np.ndarray | Iterator[np.ndarray]]


class CheckpointSaver:
    """Writes the checkpoints of one run in the background, and removes old ones. A context manager.

    On a normal exit or an error, it waits for the checkpoint being written. On SystemExit or KeyboardInterrupt, it
    drops that checkpoint. It writes one checkpoint at a time; the next save waits for the last one.

    A save keeps the current values until they are written. Resident variables are copied, and the memory of the copies
    is kept for the next save if twice as much is free. For streamed variables see runtime/weight_store/snapshot.py. If
    the copies might take more than half of free memory, or the disk of the weight store is full, training waits for the
    write. The write then needs the memory of one variable.

    The class has more than 20 methods: the background write, what it copies and what it removes share one state.

    Args:
        model_dir: Folder or URL of the checkpoints.
        mode: Execution mode. It decides the name: model.ckpt-N if pipelined, model-ckpt-N in weight streaming.
        keys: Variable to save -> its name in the checkpoints.
        settings: Settings of the run, with checkpoint_format.

    Attributes:
        write_graph: write_graph(path) writes the graph beside the checkpoint, in the same thread.
        saved_step: Step of the last save, which may still be running; None before the first.
    """

    def __init__(self, model_dir: str, mode: str, keys: Mapping[str, str], settings: RunSettings) -> None:
        self._model_dir = model_dir
        base = checkpoint_names.WEIGHT_STREAMING if mode == WEIGHT_STREAMING else checkpoint_names.PIPELINED
        self._prefix = os.path.join(model_dir, base)
        self._suffix = checkpoint_names.H5_SUFFIX if is_h5(settings, mode) else ""
        self._keys = dict(keys)
        self._constants: dict[str, np.ndarray] = {}
        self._policy = retention.Policy(settings.keep_checkpoint_max, settings.keep_checkpoint_every_n_hours)
        self._writer = AsynchronousWriter()
        self.write_graph: Callable[[str], None] | None = None
        self._acting_saver: Any = None
        self.saved_step: int | None = None
        self._prewritten_step: int | None = None
        self._total_bytes = self._written_bytes = 0  # of the current or last save

    @property
    def keys(self) -> Mapping[str, str]:
        """Variable -> its name in the checkpoints."""
        return self._keys

    def use(self, layout: Layout) -> None:
        """Change the variables to save, their names, or the constants."""
        if dict(layout.keys) != self._keys or layout.constants:
            self._keys, self._constants = dict(layout.keys), dict(layout.constants)
            self.forget_initial()

    def keep(self, saver_def: Any) -> None:
        """Keep as many checkpoints as a Saver says, instead of the settings of the run."""
        self._policy = retention.Policy(saver_def.max_to_keep, saver_def.keep_checkpoint_every_n_hours or None)

    def save_with(self, saver: Any) -> None:
        """Let a tf.compat.v1.train.Saver write the checkpoints and remove old ones."""
        self._acting_saver = saver

    def forget_initial(self) -> None:
        """Make the save of step 0 write again, since values have changed since `prewrite`."""
        self._prewritten_step = None

    @property
    def prefix(self) -> str:
        """Path of the checkpoints without step and ending."""
        return self._prefix

    def path(self, step: int) -> str:
        """Return the path of the checkpoint of a step."""
        return f"{self._prefix}-{step}{self._suffix}"

    def prewrite(self, values: Iterable[NamedValue]) -> str:
        """Write initial values as the checkpoint of step 0, one at a time; return its path.

        It counts only after `save` of step 0 enters it in the state file.
        """
        path = self.path(0)
        with open_writer(path) as writer:
            self._add(writer, values)
        integrity.trust(path)
        self._prewritten_step = 0
        return path

    def save(self, session: ProgramSession, step: int) -> str:
        """Start writing the checkpoint of a step and return its path. `wait` returns when it is written.

        Raises:
            CheckpointError: If it, or the one before, cannot be written.
        """
        path, saved_at_s = self.path(step), time.time()
        self.wait()
        if self._acting_saver is not None:
            self._acting_saver.save(session, self._prefix, global_step=step, write_meta_graph=False)
            if self.write_graph is not None:
                self.write_graph(path)
            integrity.trust(path)
            self.saved_step = step
            return path
        self._total_bytes = sum(spec.num_bytes for spec in session.weights() if spec.name in self._keys)
        self._written_bytes = 0
        if step == self._prewritten_step:
            self._record(path, saved_at_s)
            if self._fits(session):
                self._writer.save(lambda: None, lambda _: session.prepare_snapshot(self._keys))
        else:
            snapshot = self._snapshot(session)
            if snapshot is None:
                with self._progress():
                    self._write(path, saved_at_s, _one_by_one(session, self._keys))
            else:
                self._writer.save(lambda: snapshot, partial(self._write_snapshot, path, saved_at_s), snapshot.close)
        self._prewritten_step = None
        self.saved_step = step
        return path

    def check(self) -> None:
        """Raise the error of a finished write, without waiting."""
        self._writer.check()

    def wait(self) -> None:
        """Wait for the checkpoint that is being written.

        Raises:
            CheckpointError: If the write fails.
        """
        with self._progress():
            self._writer.wait()

    def _progress(self) -> Progress:
        return run_progress("Saving checkpoint", self._total_bytes, done=lambda: self._written_bytes)

    def __enter__(self) -> CheckpointSaver:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._writer.__exit__(kind, error, trace)

    def _snapshot(self, session: ProgramSession) -> SessionSnapshot | None:
        if not self._fits(session):
            needed, free = session.snapshot_bytes(self._keys), free_memory_bytes()
            self._log_waiting(f"its copies would take {format_bytes(needed)} of {format_bytes(free)} free memory")
            return None
        try:
            return session.snapshot(self._keys)
        except StoreError as error:
            self._log_waiting(str(error))
            return None

    def _fits(self, session: ProgramSession) -> bool:
        return session.snapshot_bytes(self._keys) <= _MEMORY_SHARE * free_memory_bytes()

    def _log_waiting(self, reason: str) -> None:
        run_log.info("Training waits while the checkpoint is written: %s.", reason)

    def _write_snapshot(self, path: str, saved_at_s: float, snapshot: SessionSnapshot) -> None:
        with contextlib.closing(snapshot):
            self._write(path, saved_at_s, snapshot.take())

    def _write(self, path: str, saved_at_s: float, values: Iterable[NamedValue]) -> None:
        with open_writer(path) as writer:
            self._add(writer, values)
        if self.write_graph is not None:
            self.write_graph(path)
        self._record(path, saved_at_s)

    def _add(self, writer: TensorWriter, values: Iterable[NamedValue]) -> None:
        wholes = Wholes()
        with OwnersWrite(writer, lambda: self._check_cancelled(writer.path)) as owners:
            for name, dtype, shape, value in values:
                key = self._keys[name]
                if isinstance(key, PartKey):
                    wholes.add(key, dtype, shape, value)
                elif isinstance(value, np.ndarray):
                    self._check_cancelled(writer.path)
                    writer.add(key, value)
                    self._written_bytes += value.nbytes
                elif not (isinstance(value, OwnedElsewhere) and owners.place(key, dtype, shape, value)):
                    writer.add_chunks(key, dtype, shape, self._until_cancelled(writer.path, value))
            for whole, array in [*wholes, *self._constants.items()]:
                writer.add(whole, array)
            for num_bytes in owners.finish():
                self._written_bytes += num_bytes

    def _record(self, path: str, saved_at_s: float) -> None:
        integrity.trust(path)
        retention.record_save(self._model_dir, path, self._policy, saved_at_s)
        upload_files(self._model_dir)

    def _until_cancelled(self, path: str, pieces: Iterator[np.ndarray]) -> Iterator[np.ndarray]:
        for piece in pieces:
            self._check_cancelled(path)
            yield piece
            self._written_bytes += piece.nbytes

    def _check_cancelled(self, path: str) -> None:
        if self._writer.is_cancelled:
            raise CheckpointError(f"{path}: not written, since the run was stopped at once")


def is_h5(settings: RunSettings, mode: str) -> bool:
    """Whether a run writes HDF5 checkpoints, from checkpoint_format.

    "auto" means HDF5 for weight streaming through the appliance's interface (the config sets the execution mode), since
    scripts of 1.8 read with CheckpointReader. Under csrun and in pipelined mode it means TensorFlow's format, since
    scripts read with tf.train.
    """
    if settings.checkpoint_format != "auto":
        return settings.checkpoint_format == "h5"
    is_appliance = settings.execution_mode is not None
    return mode == WEIGHT_STREAMING and is_appliance and env.read().job_id is None


def _one_by_one(session: ProgramSession, names: Container[str]) -> Iterator[NamedValue]:
    for spec in session.weights():
        if spec.name in names:
            value = session.read(spec.name)
            yield spec.name, value.dtype, value.shape, value
