"""ExportOutput classes: the outputs of each signature of an exported model.

These are TensorFlow's own classes, such as the former `tf.estimator.export.PredictOutput`. TensorFlow no longer exports
them under a public name.
"""

from typing import Any

from cerebras_tensorflow import tf_private

_classes = tf_private.export_output()
ClassificationOutput: Any = _classes.ClassificationOutput
EvalOutput: Any = _classes.EvalOutput
ExportOutput: Any = _classes.ExportOutput
PredictOutput: Any = _classes.PredictOutput
RegressionOutput: Any = _classes.RegressionOutput

__all__ = ["ClassificationOutput", "EvalOutput", "ExportOutput", "PredictOutput", "RegressionOutput"]
