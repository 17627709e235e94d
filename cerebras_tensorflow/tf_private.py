"""All private modules of TensorFlow that we use, in one place.

TensorFlow has no public name for these. `tests/unit/test_tf_private.py` checks each of them on every supported release.
Each name is imported on use, so importing this module does not load TensorFlow. The private names that the
compatibility modules need are in `cerebras_tensorflow.compat`.
"""

from __future__ import annotations

import importlib
from typing import Any


def export_utils() -> Any:
    """Return the module that makes signatures of ExportOutputs. It was public until 2.16 removed tf.estimator."""
    return importlib.import_module("tensorflow.python.saved_model.model_utils.export_utils")


def export_output() -> Any:
    """Return the module of the ExportOutput classes. It was public until 2.16 removed tf.estimator."""
    return importlib.import_module("tensorflow.python.saved_model.model_utils.export_output")


def op_definition(kind: str) -> Any:
    """Return the OpDef of an op type, or None. No public function returns it."""
    return importlib.import_module("tensorflow.python.framework.op_def_registry").get(kind)


def keras_compile_utils() -> Any:
    """Return the module of tf_keras that has LossesContainer and MetricsContainer."""
    return importlib.import_module("tf_keras.src.engine.compile_utils")


def dataset_options(serialized: bytes) -> Any:
    """Return the options message of an OptionsDataset op; tf.data.Options cannot be read back from a graph."""
    module = importlib.import_module("tensorflow.core.framework.dataset_options_pb2")
    return module.Options.FromString(serialized)


def scope_inside_cond(graph: Any) -> str | None:
    """Return the name scope relative to the outermost enclosing tf.cond; None outside a tf.cond."""
    context = graph._get_control_flow_context()  # noqa: SLF001 - no public name for it
    outermost = None
    while context is not None:
        if context.IsCondContext():
            outermost = context
        context = context.outer_context
    if outermost is None:
        return None
    around = f"{outermost.name.rsplit('/', 1)[0]}/"  # the context's name is cond/cond_text
    return str(graph.get_name_scope() + "/").removeprefix(around).rstrip("/")
