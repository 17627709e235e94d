"""Where ours differs from TensorFlow 2.15: scenario -> why. A scenario that has come right leaves this table."""

_OPEN = "TODO(issue 16): not yet as in 2.15"

KNOWN: dict[str, str] = {
    "signatures.experimental_v1": _OPEN,
    "signatures.experimental_v2": _OPEN,
    "signatures.names_of_every_module": _OPEN,
    "signatures.top_v1": _OPEN,
    "signatures.top_v2": _OPEN,
    "signatures.tpu_v1": _OPEN,
    "lifecycle.forms_of_constructors": _OPEN,
    "lifecycle.forms_of_model_fn": _OPEN,
    "lifecycle.infinite_loss_goes_on": _OPEN,
    "lifecycle.keeps_as_many_checkpoints_as_asked": _OPEN,
    "lifecycle.model_fn_of_an_estimator": _OPEN,
    "lifecycle.moving_averages": _OPEN,
    "lifecycle.own_global_step": _OPEN,
    "lifecycle.params_and_config": _OPEN,
    "lifecycle.reference_variables": _OPEN,
    "lifecycle.saves_after_a_resume": _OPEN,
    "specs.default_export_outputs": _OPEN,
    "specs.forms_that_are_refused": _OPEN,
    "specs.forms_that_are_taken": _OPEN,
    "specs.metric_named_loss_or_global_step": _OPEN,
    "specs.metric_that_is_a_tuple_of_tensors": _OPEN,
    "specs.other_graphs": _OPEN,
    "specs.replace": _OPEN,
}
