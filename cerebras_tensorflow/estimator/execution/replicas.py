"""Multi-replica training in pipelined mode (`--multireplica`): replicas of the model share each batch.

The original's compiler puts as many replicas onto the wafer as fit. Here each replica is a process, as a CSX is. A
batch is cut into the same micro-batches on every machine, so the bits do not depend on the number of replicas.
"""

from __future__ import annotations

import json
import os
from dataclasses import replace
from typing import Any

from cerebras_tensorflow.config.env import WEIGHT_STREAMING
from cerebras_tensorflow.errors import SettingsError
from cerebras_tensorflow.estimator.config.cs_config import CSConfig
from cerebras_tensorflow.estimator.config.run_settings import RunSettings
from cerebras_tensorflow.estimator.execution import micro_batch_size
from cerebras_tensorflow.estimator.execution.several_csx import SharedBatches, num_csx_of
from cerebras_tensorflow.estimator.execution.target import Target
from cerebras_tensorflow.estimator.mode_keys import ModeKeys
from cerebras_tensorflow.estimator.model.inputs import divisors
from cerebras_tensorflow.logs import run_log
from cerebras_tensorflow.runtime.collectives.placement import check_mpi

AS_MANY_AS_FIT = -1
_MOST = 4  # replicas, and parts of a batch, if the settings give no number


def asked(settings: RunSettings, execution_mode: str) -> int:
    """Return target_num_replicas of the settings for the original's compiler: -1 means as many as fit, 0 none.

    In the appliance's messages, scripts of 1.7 and 1.8 set `pipeline_options` in both modes. We ignore them in weight
    streaming.
    """
    full_config = settings.stack_params.get("config") if settings.stack_params is not None else None
    number = getattr(full_config, "target_num_replicas", 0)
    if number or execution_mode == WEIGHT_STREAMING:
        return _count(number)
    options = getattr(getattr(settings.cs.debug_args, "debug_crd", None), "pipeline_options", None)
    try:
        given = json.loads(getattr(options, "full_config", "") or "{}")
    except ValueError:
        return 0
    return _count(given.get("target_num_replicas", given.get("targetNumReplicas"))) if isinstance(given, dict) else 0


def _count(value: Any) -> int:
    return value if isinstance(value, int) and (value == AS_MANY_AS_FIT or value > 1) else 0


def share_batches(inputs: SharedBatches, settings: RunSettings, params: Any, target: Target) -> CSConfig:
    """Let replicas share the batches of a training run, if the settings ask for replicas.

    Returns:
        The CSConfig of the run, with the micro-batch size that the replicas need.

    Raises:
        SettingsError: If a number of replicas is set and the batch has fewer micro-batches.
    """
    cs = settings.cs
    number = asked(settings, target.mode)
    if not number or num_csx_of(cs) > 1:
        return cs
    reason = _why_one(inputs) if target.is_cs else "the run is not on a CS system (cs_ip)"
    if reason is not None:
        run_log.info("Multi-replica training: one replica computes the whole batch here, because %s.", reason)
        return cs
    size = inputs.batch_size
    most = _MOST if number == AS_MANY_AS_FIT else number
    given = micro_batch_size.requested(cs, params, ModeKeys.TRAIN)
    parts = size // given if isinstance(given, int) else max(count for count in divisors(size) if count <= most)
    if number == AS_MANY_AS_FIT:
        number = min(parts, most, len(os.sched_getaffinity(0)))
    elif parts < number:
        raise SettingsError(
            f"target_num_replicas is {number}, and a batch of {size} samples has {parts} equal micro-batches. Choose a "
            "batch size that the number of replicas divides, a smaller micro_batch_size, or fewer replicas."
        )
    run_log.info("Multi-replica training: %d replica(s) share each batch of %d samples.", number, size)
    if number > 1:
        inputs.share(number, True)
    if isinstance(given, int) or parts == 1:
        return cs
    if given is not None:
        run_log.info("micro_batch_size %s has no effect with replicas: it is %d samples.", given, size // parts)
    return replace(cs, micro_batch_size=size // parts)


def _why_one(inputs: SharedBatches) -> str | None:
    """Return why replicas cannot share the batches of an input; None if they can."""
    if not inputs.is_fed:
        return "input_fn returns tensors of the model's graph, not a Dataset"
    try:
        if inputs.batch_size == 1:
            return "a batch has one sample"
        check_mpi()
    except SettingsError as error:
        return str(error)
    return None
