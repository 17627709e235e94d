"""Compile a model without running it, and compare micro-batch sizes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from cerebras_tensorflow import files
from cerebras_tensorflow.compiler.memory_plan import plan_memory
from cerebras_tensorflow.errors import MemoryBudgetError, SettingsError
from cerebras_tensorflow.estimator.config.run_settings import RunSettings
from cerebras_tensorflow.estimator.evaluation import run as evaluation_run
from cerebras_tensorflow.estimator.execution import micro_batch_size, several_csx
from cerebras_tensorflow.estimator.execution.compile_model import Compiled, compile_model
from cerebras_tensorflow.estimator.execution.run_report import write_run_report
from cerebras_tensorflow.estimator.mode_keys import ModeKeys
from cerebras_tensorflow.estimator.model.inputs import InputPipeline
from cerebras_tensorflow.estimator.model.model_call import call_model_fn, local_init_of
from cerebras_tensorflow.estimator.model.sparse_weights import SparseChoice
from cerebras_tensorflow.estimator.training.ops import training_ops
from cerebras_tensorflow.logs import run_log
from cerebras_tensorflow.units import format_bytes


@dataclass(frozen=True)
class CompileRequest:
    """The arguments of CerebrasEstimator.compile, with the settings of the estimator.

    Attributes:
        model_fn, input_fn, params, settings: Of the estimator, and from the caller.
        mode: One of ModeKeys.
        execution_mode: "pipelined" or "weight_streaming".
        compile_dir: Folder of compiled programs; None: do not write any.
        is_cerebras: Whether the loss ignores labels of -1.
        sparsity: The sparse weights of a training step; None: all are dense.
    """

    model_fn: Callable[..., Any]
    input_fn: Callable[..., Any]
    params: Any
    settings: RunSettings
    mode: str
    execution_mode: str
    compile_dir: str | None
    is_cerebras: bool
    sparsity: SparseChoice | None = None


@files.closed_to_others()
def compile_only(request: CompileRequest) -> Compiled:
    """Compile a model, and write a report. With micro_batch_size "explore", compile the fastest of all sizes.

    Raises:
        MemoryBudgetError: If the step does not fit into memory_budget.
        SettingsError: If the batches cannot be cut into micro-batches of the requested size.
    """
    compiled = _compile_with_input(request)
    run_log.info("Estimated samples/sec on the CS-2 (simulated): %.4g.", compiled.estimate.simulation.samples_per_s)
    if compiled.folder is not None:
        write_run_report(str(compiled.folder), compiled)
    return compiled


def _compile_with_input(request: CompileRequest) -> Compiled:
    pipeline = InputPipeline(request.input_fn, request.params, request.mode, request.settings)
    cs = request.settings.cs
    try:
        if request.mode == ModeKeys.TRAIN:
            several_csx.share_batches(pipeline, cs, request.params)
        wanted = micro_batch_size.requested(cs, request.params, request.mode)
        if micro_batch_size.is_exploring(wanted):
            pipeline.cut_batches(_fastest(request, pipeline, wanted))
            return _compile(request, pipeline, request.compile_dir)
        if request.mode != ModeKeys.TRAIN:
            micro_batch_size.cut(pipeline, cs, request.params, request.mode)
            return _compile(request, pipeline, request.compile_dir)
        return micro_batch_size.first_that_fits(
            pipeline, cs, request.params, lambda: _compile(request, pipeline, request.compile_dir)
        )
    finally:
        pipeline.close()


def _fastest(request: CompileRequest, pipeline: InputPipeline, wanted: Any) -> int:
    """Compare micro-batch sizes; return the one with the highest simulated speed, or the largest of those that tie.

    Raises:
        MemoryBudgetError: If none fits into memory_budget. It names the budget of the size that needs least.
        SettingsError: If no size is in range.
    """
    speeds: dict[int, float] = {}
    error: MemoryBudgetError | None = None
    for size in micro_batch_size.sizes_to_explore(wanted, pipeline.sizes_of_parts):
        pipeline.cut_batches(size)
        try:
            compiled = _compile(request, pipeline, None)
        except MemoryBudgetError as found:
            error = min(error or found, found, key=lambda one: one.needed_bytes)
            run_log.info("micro_batch_size %d: does not fit into memory_budget", size)
            continue
        speeds[size] = compiled.estimate.simulation.samples_per_s
        run_log.info(
            "micro_batch_size %d: the step takes %s; %.4g samples/sec (simulated)",
            *(size, format_bytes(plan_memory(compiled.program).peak_bytes), speeds[size]),
        )
    if not speeds:
        raise error or SettingsError(
            f"micro_batch_size {wanted}: no size for {pipeline.batch_size} samples is in range"
        )
    best = max(speeds, key=lambda size: (speeds[size], size))
    run_log.info("Recommended: micro_batch_size: %d", best)
    return best


def _compile(request: CompileRequest, pipeline: InputPipeline, compile_dir: str | None) -> Compiled:
    model = call_model_fn(
        request.model_fn,
        pipeline,
        request.mode,
        request.params,
        request.settings,
        request.is_cerebras,
        request.sparsity,
    )
    run_log.info("Done calling model_fn.")
    if request.mode == ModeKeys.TRAIN:
        step = training_ops(model).step
    elif request.mode == ModeKeys.EVAL:
        step = model.step([*evaluation_run.evaluation_ops(model).roots, local_init_of(model)])
    else:
        step = model.step([*tf.nest.flatten(model.spec.predictions, expand_composites=True), local_init_of(model)])
    return compile_model(model, step, request.execution_mode, request.settings.cs, compile_dir, is_for_cs=True)
