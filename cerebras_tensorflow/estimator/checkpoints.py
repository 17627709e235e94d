"""Which checkpoint a run starts from, and how its variables get in and out of one."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from typing import Any

import numpy as np

from cerebras_tensorflow.config.env import WEIGHT_STREAMING
from cerebras_tensorflow.errors import CheckpointError, CorruptCheckpointError
from cerebras_tensorflow.logs import run_log
from cerebras_tensorflow.runtime.session import ProgramSession
from cerebras_tensorflow.saver import checkpoint_names, retention
from cerebras_tensorflow.saver.checkpoint_reader import checkpoints_newest_first, is_complete, open_checkpoint
from cerebras_tensorflow.saver.tensor_bundle import BundleWriter


def newest_whole(model_dir: str) -> str | None:
    """Return the newest checkpoint of a model_dir that is whole; says which ones are not."""
    for path in checkpoints_newest_first(model_dir):
        if is_complete(path):
            return path
        run_log.warning("Checkpoint %s is damaged or incomplete; falling back to the one before it.", path)
    return None


def step_in(path: str) -> int:
    """Return the global step that a checkpoint holds.

    Raises:
        CheckpointError: If it has none.
    """
    with open_checkpoint(path) as reader:
        if "global_step" not in reader:
            raise CheckpointError(f"{path} holds no global_step: it is not a training checkpoint")
        return int(reader.read("global_step"))


def restore(session: ProgramSession, path: str, names: Iterable[str]) -> None:
    """Set variables of a session from a checkpoint, one at a time.

    Raises:
        CheckpointError: If the checkpoint lacks one or holds it in another shape; lists them.
        CorruptCheckpointError: If a value is damaged.
    """
    specs = {spec.name: spec for spec in session.weights()}
    wanted = [name for name in names if name in specs]
    with open_checkpoint(path) as reader:
        missing = [name for name in wanted if name not in reader]
        if missing:
            raise CheckpointError(
                f"{path} lacks {len(missing)} of this model's variables: {', '.join(missing[:5])}. The model has "
                "changed since it was written; choose another model_dir, or start from it with warm_start_from."
            )
        for name in wanted:
            shape = reader.entry(name).shape
            if shape != specs[name].shape:
                raise CheckpointError(f"{path}: {name} has shape {shape}, the model's has {specs[name].shape}")
            session.load(name, reader.read(name))


class CheckpointSaver:
    """Writes the checkpoints of one run and retires old ones.

    Args:
        model_dir: Where they go.
        mode: Execution mode; decides the name: model.ckpt-N pipelined, model-ckpt-N weight streaming.
        names: Variables to save.
        config: RunConfig.
    """

    def __init__(self, model_dir: str, mode: str, names: Iterable[str], config: Any) -> None:
        self._model_dir = model_dir
        base = checkpoint_names.WEIGHT_STREAMING if mode == WEIGHT_STREAMING else checkpoint_names.PIPELINED
        self._prefix = os.path.join(model_dir, base)
        self._names = set(names)
        self._policy = retention.Policy(config.keep_checkpoint_max, config.keep_checkpoint_every_n_hours)
        self.saved_step: int | None = None
        self._prewritten_step: int | None = None

    @property
    def prefix(self) -> str:
        """Path of the checkpoints without the step."""
        return self._prefix

    def prewrite(self, values: Iterable[tuple[str, np.ndarray]]) -> str:
        """Write initial values as the checkpoint of step 0, one at a time; return its path.

        `save` of step 0 enters it in the state file; until then a run that dies has saved nothing.
        """
        path = f"{self._prefix}-0"
        with BundleWriter(path) as writer:
            for name, value in values:
                writer.add(name, value)
        self._prewritten_step = 0
        return path

    def save(self, session: ProgramSession, step: int) -> str:
        """Write the checkpoint of a step, tensor by tensor; return its path."""
        path = f"{self._prefix}-{step}"
        if step != self._prewritten_step:
            with BundleWriter(path) as writer:
                for spec in session.weights():
                    if spec.name in self._names:
                        writer.add(spec.name, session.read(spec.name))
        self._prewritten_step = None
        retention.record_save(self._model_dir, path, self._policy, time.time())
        self.saved_step = step
        return path


def load_from_newest(session: ProgramSession, model_dir: str, first: str, names: Iterable[str]) -> str:
    """Restore from a checkpoint, or, where its values turn out damaged, from the newest before it that is whole.

    Returns:
        The checkpoint used.

    Raises:
        CorruptCheckpointError: If none can be read.
    """
    names = list(names)
    candidates = [first, *(path for path in checkpoints_newest_first(model_dir) if path != first)]
    for path in candidates:
        try:
            restore(session, path, names)
            return path
        except CorruptCheckpointError as error:
            run_log.warning("%s; falling back to the checkpoint before it.", error)
    raise CorruptCheckpointError(
        f"none of the {len(candidates)} checkpoints in {model_dir} can be read. Move them away to start anew."
    )
