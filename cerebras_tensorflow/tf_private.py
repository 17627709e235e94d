"""All private modules of TensorFlow that we use, in one place.

TensorFlow has no public name for these. `tests/unit/test_tf_private.py` checks each of them on every supported release.
Each name is imported on use, so importing this module does not load TensorFlow. The private names that the
compatibility modules need are in `cerebras_tensorflow.compat`.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

_CUSTOM_GRADIENT = re.compile(r"CustomGradient-\d+")  # the names that tf.custom_gradient makes
_IMPORTER_LOCK = threading.Lock()  # held while import_nodes has replaced a function of TensorFlow's importer


def export_utils() -> Any:
    """Return the module that makes signatures of ExportOutputs. It was public until 2.16 removed tf.estimator."""
    return importlib.import_module("tensorflow.python.saved_model.model_utils.export_utils")


def export_output() -> Any:
    """Return the module of the ExportOutput classes. It was public until 2.16 removed tf.estimator."""
    return importlib.import_module("tensorflow.python.saved_model.model_utils.export_output")


def op_definition(kind: str) -> Any:
    """Return the OpDef of an op type, or None. No public function returns it."""
    return importlib.import_module("tensorflow.python.framework.op_def_registry").get(kind)


def graph_of_function(function: Any, shapes: list[Any]) -> tuple[Any, dict[str, str]]:
    """Return the GraphDef of a FunctionDef, and function's name of a tensor -> its name there.

    Args:
        function: The FunctionDef. The functions that it calls are in the default graph.
        shapes: The shape of each argument.
    """
    module = importlib.import_module("tensorflow.python.framework.function_def_to_graph")
    graph_def, names = module.function_def_to_graph_def(function, shapes)
    return graph_def, names


def keras_lib() -> Any:
    """Return the module of the wheel tensorflow-estimator that makes Estimators from Keras models."""
    return importlib.import_module("tensorflow_estimator.python.estimator.keras_lib")


def object_graph(serialized: bytes) -> Any:
    """Return the message in which tf.train.Checkpoint keeps the names of its objects."""
    module = importlib.import_module("tensorflow.core.protobuf.trackable_object_graph_pb2")
    return module.TrackableObjectGraph.FromString(serialized)


def event_file(writer: Any) -> str:
    """Return the path of the event file of a summary FileWriter, which may not have been created yet."""
    return str(writer.event_writer._ev_writer.FileName())  # noqa: SLF001


def dataset_options(serialized: bytes) -> Any:
    """Return the options message of an OptionsDataset op; tf.data.Options cannot be read back from a graph."""
    module = importlib.import_module("tensorflow.core.framework.dataset_options_pb2")
    return module.Options.FromString(serialized)


def list_physical_devices() -> Any:
    """Return the names of the devices. The public function also creates the eager context; scripts configure it."""
    return importlib.import_module("tensorflow.python").pywrap_tfe.TF_ListPhysicalDevices()


def scope_inside_cond(graph: Any) -> str | None:
    """Return the name scope relative to the innermost enclosing tf.cond; None outside a tf.cond.

    The scope decides: an optimizer makes its variables in tf.init_scope, which leaves the tf.cond but keeps the scope.
    """
    parts = graph.get_name_scope().split("/")
    for end in range(len(parts), 0, -1):
        with contextlib.suppress(KeyError):
            graph.get_operation_by_name("/".join([*parts[:end], "pred_id"]))  # of each tf.cond of control flow v1
            return "/".join(parts[end:])
    return None


def loss_scaling(strategy: Any) -> Any:
    """Return a context in which TensorFlow 1's optimizers divide the loss by the number of replicas.

    In TensorFlow only tf.estimator does this; it has no public name.
    """
    return strategy._scale_loss_for_estimator_enabled()  # noqa: SLF001


def is_loss_scaled(graph: Any) -> bool:
    """Whether an optimizer has divided the loss by the number of replicas."""
    return bool(graph._is_loss_scaled_by_optimizer)  # noqa: SLF001


def add_listeners(hook: Any, listeners: list[Any]) -> None:
    """Add listeners to a CheckpointSaverHook. Only its constructor takes them publicly."""
    known = hook._listeners  # noqa: SLF001
    known += [listener for listener in listeners if listener not in known]


def variable_without_value(settings: Mapping[str, Any]) -> Any:
    """Return a resource variable of the default graph that has no initial value: 2 ops instead of 5 and its value.

    Args:
        settings: The keyword arguments of a variable creator. The variable is added to the collection of all variables.
    """
    taken = ("name", "shape", "dtype", "trainable", "constraint", "synchronization", "aggregation", "caching_device")
    module = importlib.import_module("tensorflow.python.ops.resource_variable_ops")
    return module.UninitializedVariable(**{key: settings[key] for key in taken if key in settings})


def close_scopes_fast(graph: Any) -> None:
    """Make the end of each tf.compat.v1.variable_scope of a new graph take time for the scopes in it alone.

    TensorFlow looks at every scope of the graph each time: seconds for a model of a hundred layers.

    Args:
        graph: A graph without variable scopes.
    """
    module = importlib.import_module("tensorflow.python.ops.variable_scope")
    with graph.as_default():  # a store that is made eagerly reuses variables of the same name without being asked
        graph.add_to_collection(module._VARSCOPESTORE_KEY, _scope_store(module)())  # noqa: SLF001


@functools.cache
def _scope_store(module: Any) -> Any:
    """Return a class that counts variable scopes like TensorFlow's, and finds those below a scope at once."""

    class ScopeStore(module._VariableScopeStore):  # noqa: SLF001
        @property
        def variable_scopes_count(self) -> dict[str, int]:
            """Name -> how often the scope was opened since the scope around it was."""
            return self._counts

        @variable_scopes_count.setter
        def variable_scopes_count(self, counts: dict[str, int]) -> None:
            self._counts = counts
            self._below: dict[str, set[str]] = {}
            for name in counts:
                self._note(name)

        def open_variable_scope(self, scope_name: str) -> None:
            super().open_variable_scope(scope_name)
            self._note(scope_name)

        def close_variable_subscopes(self, scope_name: str | None) -> None:
            if scope_name is None:
                super().close_variable_subscopes(None)
                return
            for name in self._below.pop(scope_name, ()):
                self._counts.pop(name, None)  # a missing name counts as 0

        def _note(self, name: str) -> None:
            end = name.rfind("/")
            while end > 0:
                self._below.setdefault(name[:end], set()).add(name)
                end = name.rfind("/", 0, end)

    return ScopeStore


def set_input(operation: Any, index: int, tensor: Any) -> None:
    """Replace an input of an op, before its graph runs."""
    operation._update_input(index, tensor)  # noqa: SLF001


def forget_custom_gradients(graph_def: Any) -> None:
    """Free the graph that a GraphDef was made from, of which no more gradients will be computed.

    TensorFlow keeps the gradient function of each tf.custom_gradient forever, for example that of tf.nn.silu. The
    function refers to tensors, and they refer to their whole graph. It made the name for this one call. The other
    names, of tf.RegisterGradient for tf.Graph.gradient_override_map, belong to the user and stay.

    Args:
        graph_def: The graph.
    """
    functions = importlib.import_module("tensorflow.python.framework.ops").gradient_registry._registry  # noqa: SLF001
    for node in graph_def.node:
        name = node.attr["_gradient_op_type"].s.decode() if "_gradient_op_type" in node.attr else ""
        if _CUSTOM_GRADIENT.fullmatch(name):
            functions.pop(name, None)


@contextmanager
def gradients_passed_through(change: Callable[[Any, Any], Any]) -> Iterator[None]:
    """Pass the results of tf.gradients and tf.GradientTape.gradient through a function while a graph is built.

    All optimizers of TensorFlow 1 and of Keras compute their gradients by one of the two.

    Args:
        change: (gradients, sources) -> the gradients to return. Both have the structure of the caller's sources.
    """
    util: Any = importlib.import_module("tensorflow.python.ops.gradients_util")
    tape = importlib.import_module("tensorflow.python.eager.backprop").GradientTape
    symbolic, taped = util._GradientsHelper, tape.gradient  # noqa: SLF001 - no public name for it

    def from_graph(ys: Any, xs: Any, *arguments: Any, **settings: Any) -> Any:
        return change(symbolic(ys, xs, *arguments, **settings), list(xs) if isinstance(xs, (list, tuple)) else [xs])

    def from_tape(self: Any, target: Any, sources: Any, *arguments: Any, **settings: Any) -> Any:
        return change(taped(self, target, sources, *arguments, **settings), sources)

    util._GradientsHelper, tape.gradient = from_graph, from_tape  # noqa: SLF001
    try:
        yield
    finally:
        util._GradientsHelper, tape.gradient = symbolic, taped  # noqa: SLF001


def callable_of(session: Any, fetches: list[str], targets: list[str], feeds: list[str]) -> Callable[..., list[Any]]:
    """Return a function that runs a session: from arrays for the feeds, of their types, to the values of the fetches.

    It raises the errors of Session.run, but skips what Session.run does again in each call: checks of the graph, of the
    fetches and of the feeds. The public Session.make_callable calls Session.run if there are feeds.

    Args:
        session: The session.
        fetches: Names of tensors.
        targets: Names of ops to run.
        feeds: Names of tensors.
    """
    options = importlib.import_module("tensorflow.core.protobuf.config_pb2").CallableOptions(
        fetch=fetches, target=targets, feed=feeds
    )
    made = session._make_callable_from_options(options)  # noqa: SLF001
    return lambda *values: session._do_call(made, *values)  # noqa: SLF001


def profile_of(serialized: bytes) -> Any:
    """Return the XSpace in which TensorFlow's profiler writes what it recorded."""
    return importlib.import_module("tensorflow.tsl.profiler.protobuf.xplane_pb2").XSpace.FromString(serialized)


def import_nodes(graph_def: Any, name: str = "", known: Mapping[str, Any] | None = None) -> None:
    """Add the nodes of a GraphDef to the default graph, like tf.graph_util.import_graph_def in less than half the time.

    The public function reads each new op again for its colocation and device, in Python. These GraphDefs have no
    colocation constraints, and TensorFlow itself keeps their devices. A tf.device around the call has no effect.

    Args:
        graph_def: The nodes and their functions. It has no `_class` attributes.
        name: Prefix of the new names, without a slash.
        known: Name of an input of the nodes -> the tensor of the default graph that it means.
    """
    importer: Any = importlib.import_module("tensorflow.python.framework.importer")
    own = importlib.import_module("tensorflow.python.framework.ops").get_default_graph()
    with _IMPORTER_LOCK:
        public = importer._ProcessNewOps  # noqa: SLF001 - no public name for it

        def make_ops(graph: Any) -> None:
            if graph is own:
                graph._add_new_tf_operations(compute_devices=False)  # noqa: SLF001
            else:  # another thread, in the public function
                public(graph)

        importer._ProcessNewOps = make_ops  # noqa: SLF001
        try:
            importer.import_graph_def(graph_def, dict(known or {}), name=name)
        finally:
            importer._ProcessNewOps = public  # noqa: SLF001
