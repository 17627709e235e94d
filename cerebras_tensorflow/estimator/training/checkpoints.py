"""The checkpoint that a run starts from: finding it, and loading its variables."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Container, Mapping
from functools import partial
from typing import Any

import numpy as np
import tensorflow as tf

from cerebras_tensorflow import tf_private
from cerebras_tensorflow.errors import CheckpointError
from cerebras_tensorflow.estimator.model.partitions import PartKey
from cerebras_tensorflow.estimator.training.restore_errors import MissingVariableError, OtherShapeError
from cerebras_tensorflow.graph.program import dtype_from_name
from cerebras_tensorflow.locations import local_path, object_location
from cerebras_tensorflow.logs import run_log, run_progress
from cerebras_tensorflow.runtime.csx.checkpoint_files import Source
from cerebras_tensorflow.runtime.session import ProgramSession
from cerebras_tensorflow.saver import integrity
from cerebras_tensorflow.saver import names as checkpoint_names
from cerebras_tensorflow.saver.checkpoint_reader import checkpoints_newest_first, open_checkpoint
from cerebras_tensorflow.saver.interface import TensorReader
from cerebras_tensorflow.saver.model_dir.state import read_state

_CONDS = re.compile(r"(cond(_\d+)?/)+")  # scopes of tf.cond
_OBJECT_GRAPH = "_CHECKPOINTABLE_OBJECT_GRAPH"
_BOOKKEEPING = {_OBJECT_GRAPH, "save_counter"}  # of tf.train.Checkpoint


def newest_whole(model_dir: str) -> str | None:
    """Return the newest undamaged checkpoint of a model_dir; log a warning for each damaged one.

    We compare every checksum, since the step of this checkpoint also decides at which sample a resumed run continues.
    """
    for path in checkpoints_newest_first(model_dir):
        with run_progress("Checking the checkpoint"):
            problem = integrity.find_damage(path)
        if problem is None:
            return path
        run_log.warning(
            "Checkpoint %s is damaged or incomplete; falling back to the checkpoint before it. (%s)", path, problem
        )
    return None


def exists(path: str) -> bool:
    """Whether there is a checkpoint at a path. A URL is not looked up."""
    return object_location(path) is not None or any(os.path.exists(path + end) for end in ("", ".index", ".h5"))


def check_exists(path: str) -> None:
    """Raise a ValueError if there is no checkpoint at a path that the caller gave."""
    if not exists(path):
        raise ValueError(
            f"The passed save_path is not a valid checkpoint: {path}. Give the prefix, as in model_dir/model.ckpt-100, "
            "without .index or .data, or an HDF5 file."
        )


def step_in(path: str) -> int:
    """Return the global step of a checkpoint; 0 if it has none, for example after a conversion."""
    with open_checkpoint(path) as reader:
        key = names_of_objects(reader).get("global_step", "global_step")
        return int(reader.read(key)) if key in reader else 0


def names_of_objects(reader: TensorReader) -> dict[str, str]:
    """Return variable -> its name in the checkpoint, if tf.train.Checkpoint or Keras wrote it."""
    if _OBJECT_GRAPH not in reader:
        return {}
    graph = tf_private.object_graph(reader.read(_OBJECT_GRAPH).item())
    return {value.full_name: value.checkpoint_key for node in graph.nodes for value in node.attributes}


def step_saved_by_others(model_dir: str) -> int:
    """Return the step of the newest checkpoint in a folder where another process saves; 0 if there is none.

    It does not compare checksums. If the other process removes the checkpoint meanwhile, the result is 0.
    """
    with contextlib.suppress(CheckpointError):
        state = read_state(model_dir)
        return step_in(state.model_checkpoint_path) if state is not None else 0
    return 0


def restore(session: ProgramSession, path: str, keys: Mapping[str, str]) -> None:
    """Set variables of a session from a checkpoint, one at a time. A file store may use the checkpoint's file directly.

    Args:
        session: The session.
        path: The checkpoint.
        keys: Variable -> its name in the checkpoint.

    Raises:
        MissingVariableError: If the checkpoint lacks a variable.
        OtherShapeError: If it has a variable in another shape.
        CorruptCheckpointError: If a value is damaged.
    """
    specs = {spec.name: spec for spec in session.weights() if spec.name in keys}
    with open_checkpoint(path) as reader, contextlib.ExitStack() as stack, session.owners_read() as owners:
        where_others_see_it = path if object_location(path) is not None else os.path.abspath(local_path(path))
        first_file = next(iter(checkpoint_names.files_of(where_others_see_it)), "")
        present = {name: reader_key(reader, keys[name]) for name in specs}
        if "global_step" in present and present["global_step"] is None:
            del present["global_step"]  # no training run wrote this checkpoint: start at step 0
            session.load("global_step", np.zeros((), np.int64))
        missing = [keys[name] for name, key in present.items() if key is None]
        if missing:
            raise MissingVariableError(_other_model(path, missing, [*reader.names()], set(keys.values())))
        progress = stack.enter_context(run_progress("Loading weights", sum(spec.num_bytes for spec in specs.values())))
        reader.will_read(key for name, key in present.items() if key is not None and not owners.may_read(name))
        for name, key in present.items():
            assert key is not None
            part = keys[name]
            shape, expected = reader.entry(key).shape, part.shape if isinstance(part, PartKey) else specs[name].shape
            is_fixed = isinstance(part, PartKey) or specs[name].is_fixed
            if is_fixed and shape != expected:
                raise OtherShapeError(f"{path}: {key} has shape {shape}, the model's has {expected}.")
            if isinstance(part, PartKey):
                session.load(name, reader.read_region(key, part.region))
                progress.advance(specs[name].num_bytes)
                continue
            source = Source(where_others_see_it, key, first_file)
            if owners.start(name, source):
                continue
            where = reader.extent(key)
            is_same_type = reader.entry(key).dtype == dtype_from_name(specs[name].dtype)
            if where is None or not is_same_type or not session.adopt(name, where.path, where.offset, where.crc):
                owners.make_room(specs[name].num_bytes)
                if owners.set(name, specs[name].num_bytes, partial(session.load, name, reader.read(key), source)):
                    continue
            progress.advance(specs[name].num_bytes)
        for name in owners.finish():
            progress.advance(specs[name].num_bytes)


def without_missing(path: str, keys: Mapping[str, str], optional: Container[str]) -> dict[str, str]:
    """Return the keys without the optional variables that a checkpoint lacks.

    Args:
        path: The checkpoint.
        keys: Variable -> its name in the checkpoint.
        optional: Variables that it may lack.
    """
    with open_checkpoint(path) as reader:
        return {name: key for name, key in keys.items() if name not in optional or key in reader}


def restore_with(saver: Any, session: ProgramSession, path: str) -> None:
    """Set the variables of a session by the `restore` of a Saver of the caller."""
    saver.restore(session, path)
    state = tf.train.get_checkpoint_state(os.path.dirname(path))
    if state is not None and hasattr(saver, "recover_last_checkpoints"):
        saver.recover_last_checkpoints(state.all_model_checkpoint_paths)


def warn_of_left_over(path: str, keys: Mapping[str, str]) -> None:
    """Log what a checkpoint holds that the model lacks: it was written by another model, and the next save drops it.

    Args:
        path: The checkpoint.
        keys: Variable of the model -> its name in the checkpoint.
    """
    with open_checkpoint(path) as reader:
        used = {reader_key(reader, key) for key in keys.values()}
        left_over = [name for name in reader.names() if name not in used and name not in _BOOKKEEPING]
    if left_over:
        run_log.warning(
            "%s holds %d tensors that this model lacks: %s%s. They are not in the next checkpoint.",
            *(path, len(left_over), ", ".join(left_over[:5]), " ..." if len(left_over) > 5 else ""),
        )


def reader_key(reader: TensorReader, key: str) -> str | None:
    """Return the name of a tensor in a checkpoint, or its name in earlier versions; None if there is neither.

    Earlier versions put the scope of a tf.cond before the names of an optimizer's scalars: cond/beta1_power.
    """
    if key in reader:
        return key
    ends = [name for name in reader.names() if name.endswith(f"/{key}") and _CONDS.fullmatch(name.removesuffix(key))]
    return ends[0] if len(ends) == 1 else None


def _other_model(path: str, missing: list[str], there: list[str], wanted: set[str]) -> str:
    """Return the error text for a checkpoint of another model."""
    text = (
        f"{path} lacks {len(missing)} of this model's variables: {', '.join(missing[:5])}"
        f"{' ...' if len(missing) > 5 else ''}."
    )
    left_over = [name for name in there if name not in wanted]
    if left_over:
        text += (
            f" It has {len(left_over)} that the model lacks: {', '.join(left_over[:5])}"
            f"{' ...' if len(left_over) > 5 else ''}."
        )
    return (
        f"{text} The model has changed since it was written; choose another model_dir, or start from it with "
        "warm_start_from."
    )
