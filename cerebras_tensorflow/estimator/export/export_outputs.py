"""What a model offers to a server: the outputs of each signature of an exported model.

The classes are TensorFlow's own, which no public name exports since tf.estimator has gone; a private module is the only
place where `tf.estimator.export.PredictOutput` of code that was written before is the same class.
"""

from tensorflow.python.saved_model.model_utils.export_output import (
    ClassificationOutput,
    EvalOutput,
    ExportOutput,
    PredictOutput,
    RegressionOutput,
)

__all__ = ["ClassificationOutput", "EvalOutput", "ExportOutput", "PredictOutput", "RegressionOutput"]
