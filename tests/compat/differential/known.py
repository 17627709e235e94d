"""Where ours differs from TensorFlow 2.15: scenario -> reason. Remove a scenario here once it matches."""

_OPEN = "TODO(issue 16): not yet as in 2.15"
_OURS_TOO = "ours has Estimator.compile too, and export_savedmodel in both APIs"
_NAMES = "names of partitioned variables differed; fixed since; TODO(issue 16): run it again"

KNOWN: dict[str, str] = {
    "canned.baseline": "the v2 baselines fail in both, with other errors",
    "canned.combined_v1": _NAMES,
    "canned.dnn_batch_norm_v1": _NAMES,
    "canned.dnn_batch_norm_v2": _NAMES,
    "canned.estimators_with_heads": "the v2 baseline fails in both, with other errors",
    "canned.exports_of_a_classifier": _NAMES,
    "canned.feature_columns": _NAMES,
    "canned.kmeans": "a variable of unknown shape is not initialized",
    "canned.loss_reductions": _NAMES,
    "canned.optimizers_as_objects": _NAMES,
    "canned.optimizers_by_name": _NAMES,
    "canned.recurrent": "a TensorArray of Keras 2's RNN layers is written twice in loops of control flow v1",
    "canned.sdca": "the table that its optimizer keeps cannot be part of a step",
    "canned.sparse_linear_columns": _NAMES,
    "canned.weights_and_vocabularies": _NAMES,
    "signatures.experimental_v1": _OURS_TOO,
    "signatures.experimental_v2": _OURS_TOO,
    "signatures.names_of_every_module": "tpu.experimental is for embeddings on a TPU",
    "signatures.top_v1": _OURS_TOO,
    "signatures.top_v2": _OURS_TOO,
    "signatures.tpu_v1": _OURS_TOO,
    "lifecycle.forms_of_constructors": _OPEN,
    "specs.sparse_predictions": "ours predicts them, in whole batches; 2.15 refuses them",
}
