"""A spec's Scaffold: initial values of variables, and their names in checkpoints."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from cerebras_tensorflow.errors import CerebrasError
from cerebras_tensorflow.estimator.model.graph_settings import graph_semantics
from cerebras_tensorflow.estimator.model.model_call import Model
from cerebras_tensorflow.estimator.model.partitions import PartKey
from cerebras_tensorflow.locations import object_location
from cerebras_tensorflow.logs import run_log
from cerebras_tensorflow.runtime.fetches import ancestors
from cerebras_tensorflow.saver.names import H5_SUFFIX

_PASSING = ("Identity", "ReadVariableOp")


def finalize(model: Model) -> Any:
    """Let the Scaffold make its ops and its Saver, which hooks may use.

    Returns:
        The Saver that model_fn chose; None if it chose none.
    """
    if model.scaffold is None:
        return None
    is_own = model.scaffold.saver is not None or bool(model.graph.get_collection(tf.compat.v1.GraphKeys.SAVERS))
    with model.graph.as_default(), graph_semantics():
        model.scaffold.finalize()
    return model.scaffold.saver if is_own else None


def acting_saver(model: Model, path: str) -> Any:
    """Return the Saver that has to save and restore by itself; None if we do it, with the names of the Saver.

    Args:
        model: The model.
        path: A checkpoint, or the start of its path. TensorFlow's Savers know neither HDF5 nor our URLs.

    Returns:
        A Saver of the caller's own class, since we do not know what its methods do. Also the Saver of a model that
        saves more than variables, such as a MutableHashTable.
    """
    if path.endswith(H5_SUFFIX) or object_location(path) is not None:
        return None
    saver = model.scaffold.saver if model.scaffold is not None else None
    if model.graph.get_collection(tf.compat.v1.GraphKeys.SAVEABLE_OBJECTS):
        with model.graph.as_default():
            return saver or tf.compat.v1.train.Saver(sharded=True, save_relative_paths=True)
    own_class = hasattr(saver, "save") and not isinstance(saver, tf.train.Checkpoint)
    return saver if own_class and type(saver) is not tf.compat.v1.train.Saver else None


@dataclass(frozen=True)
class Layout:
    """What checkpoints hold.

    Attributes:
        keys: Variable -> its name in checkpoints.
        constants: Name -> value, such as the object graph of a tf.train.Checkpoint.
    """

    keys: Mapping[str, str]
    constants: Mapping[str, np.ndarray]


def checkpoint_layout(model: Model, saver: Any) -> Layout:
    """Return what a Saver saves. Without a Saver, all variables are saved under their own names.

    Raises:
        CerebrasError: If the Saver does not have the ops of a tf.compat.v1.train.Saver.
    """
    if saver is None:
        return Layout(model.checkpoint_keys(), {})
    saver_def = getattr(saver, "saver_def", None)
    if saver_def is None:
        raise CerebrasError(
            f"Scaffold.saver is {saver!r}: expected a tf.compat.v1.train.Saver or a tf.train.Checkpoint."
        )
    known = {variable.handle.op.name: name for name, variable in model.saved_names().items()}
    own = model.checkpoint_keys()
    root = model.graph.get_operation_by_name(saver_def.save_tensor_name.split(":")[0])
    keys: dict[str, str] = {}
    constants: dict[str, np.ndarray] = {}
    left_out: list[str] = []
    saves = [operation for operation in ancestors([root]) if operation.type == "SaveV2"]
    for key, tensor in itertools.chain.from_iterable(map(_saved, saves)):
        source = _source(tensor)
        name = known.get(str(source.name))
        if name is not None:
            part = own[name]
            keys[name] = part.renamed(key) if isinstance(part, PartKey) else key
        elif source.type == "Const":
            constants[key] = np.asarray(tf.get_static_value(source.outputs[0]), tensor.dtype.as_numpy_dtype)
        else:
            left_out.append(key)
    if left_out:
        run_log.warning("Not saved, since checkpoints hold only variables: %s.", ", ".join(sorted(left_out)))
    return Layout(keys, constants)


def _saved(operation: Any) -> Iterator[tuple[str, Any]]:
    for key, tensor in zip(tf.get_static_value(operation.inputs[1]), operation.inputs[3:], strict=True):
        yield key.decode(), tensor


def _source(tensor: Any) -> Any:
    """Return the op behind a tensor, without reads and Identity ops."""
    operation = tensor.op
    while operation.type in _PASSING:
        operation = operation.inputs[0].op
    return operation


@dataclass(frozen=True)
class OwnInit:
    """How model_fn's Scaffold sets the variables of a new run. None: not set by model_fn.

    Attributes:
        init_op, init_feed_dict: Op to run and its feeds. Plain variable initializers in it are skipped.
        init_fn: Called with the session.
        ready_op: Returns the names of variables that are not initialized.
    """

    init_op: Any
    init_feed_dict: Mapping[Any, Any]
    init_fn: Callable[[Any], None] | None
    ready_op: Any

    @property
    def changes_values(self) -> bool:
        """Whether variables may get values other than those of their initializers."""
        return self.init_op is not None or self.init_fn is not None

    def run(self, model: Model, session: Any) -> None:
        """Run init_op and init_fn."""
        if self.init_op is not None:
            initializers = {variable.initializer.name for variable in model.graph.get_collection("variables")}
            parts = [part for part in _parts(self.init_op) if part.name not in initializers]
            if parts:
                session.run(parts, dict(self.init_feed_dict))
        if self.init_fn is not None:
            self.init_fn(session)

    def check_ready(self, session: Any) -> None:
        """Run the ready_op.

        Raises:
            RuntimeError: If it returns names of variables, with the text of TensorFlow.
        """
        if self.ready_op is None:
            return
        missing = [value.decode() if isinstance(value, bytes) else str(value) for value in session.run(self.ready_op)]
        if missing:
            raise RuntimeError(
                f"Init operations did not make model ready.  Init op: {self.init_op}, init fn: {self.init_fn}, "
                f"error: Variables not initialized: {', '.join(missing)}"
            )


def own_init(model: Model) -> OwnInit:
    """Return the settings of model_fn's Scaffold. Call it before `finalize`, which adds defaults.

    A local_init_op without a ready_op gets one that finds the local variables which it leaves uninitialized.
    """
    scaffold = model.scaffold
    if scaffold is None:
        return OwnInit(None, {}, None, None)
    ready_op = scaffold.ready_op
    if ready_op is None and scaffold.local_init_op is not None:
        with model.graph.as_default(), graph_semantics():
            ready_op = tf.compat.v1.report_uninitialized_variables(tf.compat.v1.local_variables())
    return OwnInit(scaffold.init_op, scaffold.init_feed_dict or {}, scaffold.init_fn, ready_op)


def _parts(value: Any) -> list[Any]:
    """Return the ops in a group, or in a list of groups."""
    if isinstance(value, (list, tuple)):
        return [part for item in value for part in _parts(item)]
    operation = value if isinstance(value, tf.Operation) else value.op
    if operation.type == "NoOp":
        return [part for item in operation.control_inputs for part in _parts(item)]
    return [operation]
