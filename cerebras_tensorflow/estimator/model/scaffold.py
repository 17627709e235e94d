"""A spec's Scaffold: initial values of variables, and their names in checkpoints."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from cerebras_tensorflow.errors import CerebrasError
from cerebras_tensorflow.estimator.model.model_call import Model, graph_semantics
from cerebras_tensorflow.logs import run_log
from cerebras_tensorflow.runtime.fetches import ancestors

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


def checkpoint_keys(model: Model, saver: Any) -> dict[str, str]:
    """Return variable -> its name in checkpoints, for all variables that a Saver saves.

    Without a Saver, all variables have their own names.

    Raises:
        CerebrasError: If the Saver does not have the ops of a tf.compat.v1.train.Saver.
    """
    if saver is None:
        return {name: name for name in model.saved_names()}
    saver_def = getattr(saver, "saver_def", None)
    if saver_def is None:
        raise CerebrasError(
            f"Scaffold.saver is {saver!r}: expected a tf.compat.v1.train.Saver or a tf.train.Checkpoint."
        )
    known = {variable.handle.op.name: name for name, variable in model.saved_names().items()}
    root = model.graph.get_operation_by_name(saver_def.save_tensor_name.split(":")[0])
    keys: dict[str, str] = {}
    left_out: list[str] = []
    for operation in ancestors([root]):
        if operation.type == "SaveV2":
            for key, tensor in _saved(operation):
                name = known.get(_source(tensor))
                if name is not None:
                    keys[name] = key
                elif tensor.op.type != "Const":  # a tf.train.Checkpoint stores its object graph as a constant
                    left_out.append(key)
    if left_out:
        run_log.warning("Not saved, since checkpoints hold only variables: %s.", ", ".join(sorted(left_out)))
    return keys


def _saved(operation: Any) -> Iterator[tuple[str, Any]]:
    names, slices = (tf.get_static_value(operation.inputs[number]) for number in (1, 2))
    for key, part, tensor in zip(names, slices, operation.inputs[3:], strict=True):
        if part:
            raise CerebrasError(
                f"Scaffold.saver saves {key.decode()} in slices ({part.decode()}). Create the variable without a "
                "partitioner: weight streaming slices it anyway."
            )
        yield key.decode(), tensor


def _source(tensor: Any) -> str:
    """Return the name of the op behind a tensor, without reads and Identity ops."""
    operation = tensor.op
    while operation.type in _PASSING:
        operation = operation.inputs[0].op
    return str(operation.name)


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
        """Run the Scaffold's ready_op.

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


def own_init(scaffold: Any) -> OwnInit:
    """Return the settings of a Scaffold from model_fn. Call it before `finalize`, which adds defaults."""
    if scaffold is None:
        return OwnInit(None, {}, None, None)
    return OwnInit(scaffold.init_op, scaffold.init_feed_dict or {}, scaffold.init_fn, scaffold.ready_op)


def _parts(value: Any) -> list[Any]:
    """Return the ops in a group, or in a list of groups."""
    if isinstance(value, (list, tuple)):
        return [part for item in value for part in _parts(item)]
    operation = value if isinstance(value, tf.Operation) else value.op
    if operation.type == "NoOp":
        return [part for item in operation.control_inputs for part in _parts(item)]
    return [operation]
