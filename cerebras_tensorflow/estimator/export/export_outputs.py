"""What a model offers to a server: the outputs of each signature of an exported model.

The classes are TensorFlow's own, which no public name exports since tf.estimator has gone. They are the same classes as
`tf.estimator.export.PredictOutput` of code that was written before.
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
