"""Starts the other CSX of an evaluation or a prediction."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

from cerebras_tensorflow.estimator.execution.several_csx import CsxRequest, num_csx_of, start_inference
from cerebras_tensorflow.estimator.mode_keys import ModeKeys
from cerebras_tensorflow.estimator.model.inputs import InputPipeline
from cerebras_tensorflow.logs import run_log
from cerebras_tensorflow.runtime.inference.shared import SharedInference


def other_csx(
    request: CsxRequest, mode: str, pipeline: InputPipeline, num_batches: int | None, cleanup: ExitStack
) -> SharedInference | None:
    """Start the other CSX; return None if there are none, or if they cannot share the input.

    Args:
        request: What they need.
        mode: EVAL or PREDICT.
        pipeline: The input.
        num_batches: Number of batches of the run; None: all.
        cleanup: Gets callbacks that end them and release their folder.

    Raises:
        SettingsError: If MPI is not installed.
        CollectiveError: If the processes do not start.
        StoreError: If their folder cannot be made.
    """
    num_csx = num_csx_of(request.settings)
    if num_csx == 1:
        return None
    what = "Evaluation" if mode == ModeKeys.EVAL else "Prediction"
    if not pipeline.is_fed:
        run_log.info("%s runs on one CSX: input_fn returns tensors of the model's graph, not a Dataset.", what)
        return None
    ranks = start_inference(request, num_csx, cleanup)

    def ahead(count: int) -> Any:
        return pipeline.micro_batches_ahead(count, num_batches)

    others = SharedInference(ranks, request.program, ahead, request.settings.read_once)
    cleanup.callback(others.close)
    run_log.info("%s runs on %d CSX.", what, num_csx)
    return others
