"""Where ours differs from TensorFlow 2.15: scenario -> reason. Remove a scenario here once it matches."""

_OURS_TOO = "ours has Estimator.compile too, and export_savedmodel in both APIs"

KNOWN: dict[str, str] = {
    "exports.several_modes": "the log tells less of the checkpoint",
    "exports.variables_of_one_mode": "the log tells less of the checkpoint",
    "scaffolds.own_saver_class": "the log tells of the restore before training twice",
    "canned.baseline": "the v2 baselines fail in both, with other errors",
    "canned.estimators_with_heads": "the v2 baseline fails in both, with other errors",
    "heads.partitioned_inputs": "2.15 saves the parts of a variable as slices of one tensor; ours saves part_0, part_1",
    "signatures.experimental_v1": _OURS_TOO,
    "signatures.experimental_v2": _OURS_TOO,
    "signatures.top_v1": _OURS_TOO,
    "signatures.top_v2": _OURS_TOO,
    "signatures.tpu_v1": _OURS_TOO,
    "specs.sparse_predictions": "ours predicts them, in whole batches; 2.15 refuses them",
    "exports.saved_model_estimator": "the log tells less of the checkpoint",
    "scaffolds.saver_of_some_variables": "ours initializes the other variables after a restore; 2.15 stops",
    "scaffolds.checkpoint_as_saver": "2.15 writes one shard for each device",
    "scaffolds.local_init_op": "a run that cannot begin leaves no event file",
    "scaffolds.ready_op": "a run that cannot begin leaves no event file",
}
