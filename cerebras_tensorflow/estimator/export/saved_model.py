"""Export of a trained model as a SavedModel, and its input receivers."""

from __future__ import annotations

import os
import time
from collections import namedtuple
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import tensorflow as tf

from cerebras_tensorflow import files, tf_private
from cerebras_tensorflow.estimator.config.run_settings import RunSettings
from cerebras_tensorflow.estimator.mode_keys import ModeKeys
from cerebras_tensorflow.estimator.model.graph_settings import graph_semantics
from cerebras_tensorflow.estimator.model.inputs import BatchInputs
from cerebras_tensorflow.estimator.model.model_call import Model, call_model_fn, local_init_of
from cerebras_tensorflow.estimator.model.partitions import read_key
from cerebras_tensorflow.estimator.model.scaffold import acting_saver, checkpoint_layout
from cerebras_tensorflow.estimator.training import checkpoints
from cerebras_tensorflow.locations import object_location
from cerebras_tensorflow.logs import run_log
from cerebras_tensorflow.runtime.session import session_settings
from cerebras_tensorflow.saver.checkpoint_reader import open_checkpoint
from cerebras_tensorflow.saver.interface import TensorReader
from cerebras_tensorflow.saver.objects.store import Bucket

_TRAIN_OP = "saved_model_train_op"  # collection of a SavedModel that names its train op
SINGLE_FEATURE = "feature"
SINGLE_RECEIVER = "input"
SINGLE_LABEL = "label"
# Order of tf.estimator. The first graph needs all variables, so training comes first.
_TAGS = {ModeKeys.TRAIN: "train", ModeKeys.EVAL: "eval", ModeKeys.PREDICT: "serve"}

if TYPE_CHECKING:
    _Fields: TypeAlias = Any
    _SupervisedFields: TypeAlias = Any
else:
    _SupervisedFields = namedtuple("SupervisedInputReceiver", ("features", "labels", "receiver_tensors"))
    _Fields = namedtuple("ServingInputReceiver", ("features", "receiver_tensors", "receiver_tensors_alternatives"))


class ServingInputReceiver(_Fields):
    """The tensors that a server feeds, and the features for model_fn.

    A single feature gets the key "feature", a single receiver tensor the key "input".

    Raises:
        ValueError: If features or receiver tensors are not tensors, or a key is not a string. Features may also have
            integer keys.
    """

    def __new__(cls, features: Any, receiver_tensors: Any, receiver_tensors_alternatives: Any = None) -> Any:
        """Return a checked receiver."""
        return super().__new__(
            cls, _checked_features(features), *_checked_receivers(receiver_tensors, receiver_tensors_alternatives)
        )


class TensorServingInputReceiver(_Fields):
    """A ServingInputReceiver with one feature tensor, which model_fn receives without a dict.

    Raises:
        ValueError: If features is not one tensor, or for the reasons of ServingInputReceiver.
    """

    def __new__(cls, features: Any, receiver_tensors: Any, receiver_tensors_alternatives: Any = None) -> Any:
        """Return a checked receiver."""
        if features is None:
            raise ValueError("features must be defined.")
        if not _is_tensor(features):
            raise ValueError("feature must be a Tensor, SparseTensor, or RaggedTensor.")
        return super().__new__(cls, features, *_checked_receivers(receiver_tensors, receiver_tensors_alternatives))


class UnsupervisedInputReceiver(ServingInputReceiver):
    """The tensors that are fed to an exported training or evaluation graph whose model_fn needs no labels.

    Raises:
        ValueError: For the reasons of ServingInputReceiver.
    """

    def __new__(cls, features: Any, receiver_tensors: Any) -> Any:
        """Return a checked receiver."""
        return super().__new__(cls, features, receiver_tensors)


class SupervisedInputReceiver(_SupervisedFields):
    """The tensors that are fed to an exported training or evaluation graph. model_fn receives features and labels.

    Raises:
        ValueError: If features, labels or receiver tensors are not tensors, or a key is not a string. Features and
            labels may also have integer keys.
    """

    def __new__(cls, features: Any, labels: Any, receiver_tensors: Any) -> Any:
        """Return a checked receiver."""
        _checked_features(features)
        _checked_features(labels, "label")
        return super().__new__(cls, features, labels, _checked_receiver(receiver_tensors))


def build_raw_supervised_input_receiver_fn(
    features: Any, labels: Any, default_batch_size: int | None = None
) -> Callable[[], SupervisedInputReceiver]:
    """Return a function that makes one placeholder for each feature and label.

    Args:
        features: Tensors or arrays, by name or alone; their shapes (without dim 0) and types count.
        labels: In the same form.
        default_batch_size: Dim 0 of the placeholders.

    Raises:
        ValueError: If a feature and a label have the same name.
    """
    given_features = features if isinstance(features, Mapping) else {SINGLE_RECEIVER: features}
    given_labels = labels if isinstance(labels, Mapping) else {SINGLE_LABEL: labels}
    twice = set(given_features) & set(given_labels)
    if twice:
        raise ValueError(f"Features and labels must have distinct keys. Found overlapping keys: {twice}")

    def receiver_fn() -> SupervisedInputReceiver:
        x = {name: _placeholder(name, value, default_batch_size) for name, value in given_features.items()}
        y = {name: _placeholder(name, value, default_batch_size) for name, value in given_labels.items()}
        return SupervisedInputReceiver(
            x if isinstance(features, Mapping) else x[SINGLE_RECEIVER],
            y if isinstance(labels, Mapping) else y[SINGLE_LABEL],
            {**x, **y},
        )

    return receiver_fn


def build_raw_serving_input_receiver_fn(
    features: Any, default_batch_size: int | None = None
) -> Callable[[], ServingInputReceiver]:
    """Return a function that makes one placeholder for each feature.

    Args:
        features: Tensors or arrays, by name or alone; their shapes (without dim 0) and types count.
        default_batch_size: Dim 0 of the placeholders.
    """

    def receiver_fn() -> ServingInputReceiver:
        given = features if isinstance(features, Mapping) else {SINGLE_FEATURE: features}
        tensors = {name: _placeholder(name, value, default_batch_size) for name, value in given.items()}
        return ServingInputReceiver(tensors, dict(tensors))

    return receiver_fn


def build_parsing_serving_input_receiver_fn(
    feature_spec: Mapping[str, Any], default_batch_size: int | None = None
) -> Callable[[], ServingInputReceiver]:
    """Return a function that parses serialized tf.train.Examples, as feature_spec says."""

    def receiver_fn() -> ServingInputReceiver:
        serialized = tf.compat.v1.placeholder(tf.string, [default_batch_size], name="input_example_tensor")
        return ServingInputReceiver(tf.io.parse_example(serialized, feature_spec), {"examples": serialized})

    return receiver_fn


@dataclass(frozen=True)
class ExportRequest:
    """Arguments of export_saved_model or experimental_export_all_saved_models.

    Attributes:
        model_fn, params, settings: From the estimator.
        checkpoint: The checkpoint to export.
        receiver_fns: Mode of model_fn -> function that returns the receiver.
        folder: Parent of the timestamped folder.
        assets: Path in assets.extra -> file to copy there.
        as_text: Whether the SavedModel is text.
        strips_defaults: Whether attributes of ops with default values are left out, so that older programs load it.
    """

    model_fn: Callable[..., Any]
    params: Any
    settings: RunSettings
    checkpoint: str
    receiver_fns: Mapping[str, Callable[[], Any]]
    folder: str
    assets: Mapping[str, str]
    as_text: bool
    strips_defaults: bool = True


@files.closed_to_others()
def export(request: ExportRequest) -> str:
    """Write a SavedModel into a new timestamped folder and return its path. The folder appears when it is complete.

    Raises:
        ValueError: If there is no receiver function for a known mode.
    """
    modes = [mode for mode in _TAGS if request.receiver_fns.get(mode)]
    if not modes:
        raise ValueError(f"No valid modes for exporting found. Got {request.receiver_fns.keys()}.")
    checkpoints.check_exists(request.checkpoint)
    final = _timestamped(request.folder)
    partial = os.path.join(request.folder, f"temp-{os.path.basename(final)}")
    builder = tf.compat.v1.saved_model.Builder(partial)
    for mode in modes:
        _add(builder, request, mode, has_variables=mode == modes[0])
    builder.save(request.as_text)
    for place, file in request.assets.items():
        target = os.path.join(partial, "assets.extra", place)
        os.makedirs(os.path.dirname(target), exist_ok=True)
        _copy_asset(file, target)
    os.rename(partial, final)
    run_log.info("SavedModel written to: %s", final)
    return final


def _copy_asset(file: Any, target: str) -> None:
    """Copy a file of the caller: a local one, one of our URLs, or one of a file system that TensorFlow has loaded.

    Raises:
        tf.errors.NotFoundError: If a file that is not one of our URLs is missing.
        CheckpointError: If an object cannot be read.
    """
    location = object_location(file)
    if location is None:
        tf.io.gfile.copy(os.fspath(file), target)
    else:
        Bucket(location).get_file(location.key, target)


def _add(builder: Any, request: ExportRequest, mode: str, has_variables: bool) -> None:
    """Add the graph of one mode to a SavedModel. The first graph also adds the values of the variables."""
    source = _Receiver(request.receiver_fns[mode])
    model = call_model_fn(request.model_fn, source, mode, request.params, request.settings)
    run_log.info("Done calling model_fn.")
    saver = model.scaffold.saver if model.scaffold is not None else None
    acting = acting_saver(model, request.checkpoint)
    if model.spec.train_op is not None:
        model.graph.add_to_collection(_TRAIN_OP, model.spec.train_op)
    with model.graph.as_default(), graph_semantics():
        metrics = model.spec.eval_metric_ops or None
        export_utils = tf_private.export_utils()
        outputs = export_utils.export_outputs_for_mode(
            mode, model.spec.export_outputs, model.spec.predictions, model.spec.loss, metrics
        )
        signatures = export_utils.build_all_signature_defs(
            source.receiver.receiver_tensors,
            outputs,
            getattr(source.receiver, "receiver_tensors_alternatives", None),
            serving_only=mode == ModeKeys.PREDICT,
        )
        described = {
            "signature_def_map": signatures,
            "assets_collection": model.graph.get_collection(tf.compat.v1.GraphKeys.ASSET_FILEPATHS),
            "main_op": local_init_of(model),
            "strip_default_attrs": request.strips_defaults,
            "saver": acting or saver,
        }
        with open_checkpoint(request.checkpoint) as reader:
            values = _stored_variables(model, saver, reader)
            config = session_settings(request.settings.session_config, is_streaming=False)
            with tf.compat.v1.Session(graph=model.graph, config=config) as session:
                if acting is not None:
                    acting.restore(session, request.checkpoint)
                if not has_variables:
                    builder.add_meta_graph([_TAGS[mode]], **described)
                    return
                for variable, key in values if acting is None else ():
                    session.run(variable.initializer, {variable.initializer.inputs[1]: read_key(reader, key)})
                run_log.info("Restoring parameters from %s", request.checkpoint)
                builder.add_meta_graph_and_variables(session, [_TAGS[mode]], **described)


def _stored_variables(model: Model, saver: Any, reader: TensorReader) -> list[tuple[Any, str]]:
    """Return (variable, its name in the checkpoint) of all variables that are exported.

    Raises:
        ValueError: If the checkpoint lacks one.
    """
    variables = model.saved_names()
    keys = checkpoint_layout(model, saver).keys
    missing = [key for key in keys.values() if key not in reader]
    if missing:
        raise ValueError(
            "Could not load all requested variables from checkpoint. Please make sure your model_fn does not expect "
            f"variables that were not saved in the checkpoint. {reader.path} lacks {', '.join(missing)}."
        )
    return [(variables[name], key) for name, key in keys.items()]


class _Receiver:
    """Passes the receiver's features to model_fn instead of a batch."""

    graph = None

    def __init__(self, receiver_fn: Callable[[], Any]) -> None:
        self._receiver_fn = receiver_fn
        self.receiver: Any = None

    def batch(self) -> BatchInputs:
        """Call the receiver function in the current graph."""
        self.receiver = self._receiver_fn()
        return BatchInputs(self.receiver.features, getattr(self.receiver, "labels", None), ())


def _timestamped(folder: str) -> str:
    os.makedirs(folder, exist_ok=True)
    number = int(time.time())
    while os.path.exists(os.path.join(folder, str(number))):
        number += 1
    return os.path.join(folder, str(number))


def _placeholder(name: Any, value: Any, batch_size: int | None) -> Any:
    """Return a placeholder for values like a tensor or an array, named like the tensor if it has a name."""
    shape = tf.TensorShape(value.shape)
    own_name = None if tf.executing_eagerly() else getattr(getattr(value, "op", None), "name", None)
    dims = None if shape.rank is None else [batch_size, *shape.as_list()[1:]]
    return tf.compat.v1.placeholder(value.dtype, dims, name=own_name or str(name))


def _is_tensor(value: Any) -> bool:
    return isinstance(value, (tf.Tensor, tf.SparseTensor, tf.RaggedTensor))


def _checked_features(features: Any, kind: str = "feature") -> dict[str, Any]:
    if features is None:
        raise ValueError(f"{kind}s must be defined.")
    result = dict(features) if isinstance(features, Mapping) else {kind: features}
    for name, value in result.items():
        if not isinstance(name, (str, int)):
            raise ValueError(f"{kind} keys must be strings or ints: {name}.")
        if not _is_tensor(value):
            raise ValueError(f"{kind} {name} must be a Tensor, SparseTensor, or RaggedTensor.")
    return result


def _checked_receivers(tensors: Any, alternatives: Any) -> tuple[dict[str, Any], Any]:
    checked = _checked_receiver(tensors)
    if alternatives is not None:
        if not isinstance(alternatives, Mapping):
            raise ValueError(f"receiver_tensors_alternatives must be a dict: {alternatives}.")
        alternatives = {
            key: _checked_receiver(value, "receiver_tensors_alternative") for key, value in alternatives.items()
        }
    return checked, alternatives


def _checked_receiver(tensors: Any, kind: str = "receiver_tensor") -> dict[str, Any]:
    if tensors is None:
        raise ValueError(f"{kind}s must be defined.")
    result = dict(tensors) if isinstance(tensors, Mapping) else {SINGLE_RECEIVER: tensors}
    for name, value in result.items():
        if not isinstance(name, str):
            raise ValueError(f"{kind} keys must be strings: {name}.")
        if not _is_tensor(value):
            raise ValueError(f"{kind} {name} must be a Tensor, SparseTensor, or RaggedTensor.")
    return result
