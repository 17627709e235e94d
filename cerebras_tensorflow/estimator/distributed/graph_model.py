"""A model_fn with its input in one TensorFlow graph, spread over a cluster or over the replicas of a strategy."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import tensorflow as tf

from cerebras_tensorflow import tf_private
from cerebras_tensorflow.estimator.config.run_settings import Distribution, RunSettings
from cerebras_tensorflow.estimator.distributed.scaffolds import combine_scaffolds
from cerebras_tensorflow.estimator.execution.session_settings import let_tensorflow_rewrite
from cerebras_tensorflow.estimator.model.dataset_reader import OPTIONS_WARNING, untuned
from cerebras_tensorflow.estimator.model.graph_settings import graph_semantics
from cerebras_tensorflow.estimator.model.inputs import features_and_labels
from cerebras_tensorflow.estimator.model.model_call import call_for_spec
from cerebras_tensorflow.estimator.user_functions import call_input_fn


class Request(Protocol):
    """The attributes of a TrainingRequest or InferenceRequest that are needed to build a model."""

    @property
    def model_fn(self) -> Callable[..., Any]:
        """The caller's model_fn."""

    @property
    def input_fn(self) -> Callable[..., Any]:
        """The caller's input_fn."""

    @property
    def params(self) -> Any:
        """The user's params, for model_fn and input_fn."""

    @property
    def settings(self) -> RunSettings:
        """Settings of the run."""


@dataclass(frozen=True)
class GraphModel:
    """One call of model_fn, or one for each replica of a strategy, in the current graph.

    Attributes:
        spec: The EstimatorSpec. Under a strategy, its values may have one part for each replica.
        strategy: The strategy, or None.
        scaffold: The spec's Scaffold, or one for all replicas.
        input_hooks: Hooks that start the input in each new session.
    """

    spec: Any
    strategy: Any
    scaffold: Any
    input_hooks: Sequence[Any]

    def first(self, value: Any) -> Any:
        """Return the value of the first replica."""
        return value if self.strategy is None else self.strategy.experimental_local_results(value)[0]

    def hooks(self, name: str) -> list[Any]:
        """Return the hooks in a field of the spec; with a strategy, those of the first replica."""
        return [self.first(hook) for hook in getattr(self.spec, name, ())]

    def loss(self) -> Any:
        """Return the loss. Under a strategy: the sum or mean over replicas, as TensorFlow scaled their losses."""
        if self.strategy is None:
            return self.spec.loss
        is_scaled = tf_private.is_loss_scaled(tf.compat.v1.get_default_graph())
        reduction = tf.compat.v1.distribute.get_loss_reduction() if is_scaled else tf.distribute.ReduceOp.SUM
        return self.strategy.reduce(reduction, self.spec.loss, axis=None)

    def group(self, op: Any) -> Any:
        """Return one op that runs an op of the spec on all replicas."""
        return op if self.strategy is None else self.strategy.group(op)

    def on_each_replica(self, function: Callable[..., Any], *values: Any) -> Any:
        """Call a function once for each replica, with that replica's values."""
        if self.strategy is None:
            return function(*values)
        return self.strategy.extended.call_for_each_replica(function, args=values)


@contextmanager
def model_graph(settings: RunSettings, strategy: Any, device_fn: Any = None) -> Iterator[tf.Graph]:
    """Make a graph with a global step, and enter it and the scope of the strategy."""
    with ExitStack() as stack:
        graph = stack.enter_context(tf.Graph().as_default())
        stack.enter_context(graph.device(device_fn))
        stack.enter_context(graph_semantics())
        if strategy is not None:
            stack.enter_context(strategy.scope())
            stack.enter_context(tf_private.loss_scaling(strategy))
        tf.compat.v1.set_random_seed(settings.tf_random_seed)
        tf.compat.v1.train.create_global_step(graph)
        yield graph


def build(request: Request, mode: str, strategy: Any) -> GraphModel:
    """Call input_fn and model_fn in the current graph."""

    def call_model(features: Any, labels: Any) -> Any:
        return call_for_spec(request.model_fn, features, labels, mode, request.params, request.settings.config)

    def make_input(context: Any = None) -> Any:
        params = copy.deepcopy(request.params)
        return call_on_cpu(request.input_fn, mode, params, request.settings.config, context)

    if strategy is None:
        features, labels, hooks = parse_input_fn_result(make_input())
        spec = call_model(features, labels)
        return GraphModel(spec, None, spec.scaffold or tf.compat.v1.train.Scaffold(), hooks)
    with warnings.catch_warnings():  # TensorFlow warns of options of datasets that it reads itself
        warnings.filterwarnings("ignore", message=OPTIONS_WARNING)
        iterator = strategy.make_input_fn_iterator(make_input)
    features, labels = features_and_labels(iterator.get_next())
    spec = strategy.extended.call_for_each_replica(call_model, args=(features, labels))
    return GraphModel(spec, strategy, combine_scaffolds(spec.scaffold, strategy), [_InputHook(iterator.initialize)])


def session_config_of(settings: RunSettings, strategy: Any = None) -> Any:
    """Return a copy of the caller's ConfigProto, or tf.estimator's default if the RunConfig has none.

    A strategy adds its own settings.
    """
    result = tf.compat.v1.ConfigProto()
    if settings.session_config is not None:
        result.CopyFrom(settings.session_config)
    else:
        result.allow_soft_placement = True
        let_tensorflow_rewrite(result)
    return result if strategy is None else strategy.update_config_proto(result)


def device_function(distribution: Distribution) -> Any:
    """Return the device function: the caller's, or one with variables on parameter servers and ops on this task."""
    if distribution.device_fn is not None or not distribution.num_ps_replicas:
        return distribution.device_fn
    return tf.compat.v1.train.replica_device_setter(
        ps_tasks=distribution.num_ps_replicas,
        worker_device=f"/job:{distribution.task_type}/task:{distribution.task_id}",
        merge_devices=True,
        cluster=distribution.cluster_spec,
    )


def parse_input_fn_result(result: Any) -> tuple[Any, Any, list[Any]]:
    """Return features, labels, and the hooks that start the input, from what input_fn returned in the current graph."""
    if not isinstance(result, (tf.data.Dataset, tf.compat.v1.data.Dataset)):
        return *features_and_labels(result), []
    with tf.device("/cpu:0"):
        iterator = tf.compat.v1.data.make_initializable_iterator(untuned(result))
        return *features_and_labels(iterator.get_next()), [_InputHook(lambda: iterator.initializer)]


def call_on_cpu(input_fn: Callable[..., Any], mode: str, params: Any, config: Any, input_context: Any) -> Any:
    """Call an input_fn in the current graph, with its ops on the CPU."""
    offered = {"mode": mode, "params": params, "config": config, "input_context": input_context}
    with tf.device("/cpu:0"):
        return call_input_fn(input_fn, offered)


class _InputHook(tf.compat.v1.train.SessionRunHook):
    """Starts the input in each new session, also after a task of the cluster restarts."""

    def __init__(self, initializer: Callable[[], Any]) -> None:
        self._make = initializer
        self._initializer: Any = None

    def begin(self) -> None:
        self._initializer = self._make()

    def after_create_session(self, session: Any, coord: Any) -> None:
        session.run(self._initializer)
