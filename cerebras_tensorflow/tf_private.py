"""TensorFlow's private modules that we use: all of them, in one place.

TensorFlow has no public name for these. `tests/unit/test_tf_private.py` checks each of them on every supported release.
Names are looked up on use, so importing this module loads no TensorFlow. What the compatibility modules need of
TensorFlow's inside is in `cerebras_tensorflow.compat`.
"""

from __future__ import annotations

import importlib
from typing import Any


def export_utils() -> Any:
    """Return the module that makes signatures of ExportOutputs; public until tf.estimator went (2.16)."""
    return importlib.import_module("tensorflow.python.saved_model.model_utils.export_utils")


def export_output() -> Any:
    """Return the module of the ExportOutput classes; public until tf.estimator went (2.16)."""
    return importlib.import_module("tensorflow.python.saved_model.model_utils.export_output")


def op_definition(kind: str) -> Any:
    """Return the OpDef of a kind of op, or None; no public name says how an op is declared."""
    return importlib.import_module("tensorflow.python.framework.op_def_registry").get(kind)


def keras_compile_utils() -> Any:
    """Return the module of tf_keras that has LossesContainer and MetricsContainer."""
    return importlib.import_module("tf_keras.src.engine.compile_utils")


def dataset_options(serialized: bytes) -> Any:
    """Return the options message of an OptionsDataset op; tf.data.Options cannot be read back from a graph."""
    module = importlib.import_module("tensorflow.core.framework.dataset_options_pb2")
    return module.Options.FromString(serialized)


def scope_inside_cond(graph: Any) -> str | None:
    """Return the name scope that was opened inside the outermost tf.cond around; None outside any."""
    context = graph._get_control_flow_context()  # noqa: SLF001 - no public name tells where an op is made
    outermost = None
    while context is not None:
        if context.IsCondContext():
            outermost = context
        context = context.outer_context
    if outermost is None:
        return None
    around = f"{outermost.name.rsplit('/', 1)[0]}/"  # the context is called cond/cond_text
    return str(graph.get_name_scope() + "/").removeprefix(around).rstrip("/")
