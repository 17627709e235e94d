"""What the original refuses in a run on a CS system, and which settings of old scripts change nothing here."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from cerebras_tensorflow.config import env
from cerebras_tensorflow.config.env import PIPELINED, WEIGHT_STREAMING
from cerebras_tensorflow.errors import CerebrasError
from cerebras_tensorflow.estimator.config.run_settings import RunSettings
from cerebras_tensorflow.estimator.mode_keys import ModeKeys
from cerebras_tensorflow.estimator.model.model_call import Model
from cerebras_tensorflow.logs import run_log

MAX_CHECKPOINT_MB = 9024
"""1.4 and 1.5: limit of a pipelined run's checkpoints [2**20 B]. Weight streaming never had it: GPT-J has 24 GB."""

_PARAMS = (
    ("runconfig", "use_cs_grad_accum", "a batch is computed in one piece, which gives the same sums"),
    ("model", "precision_opt_level", "numbers keep the formats that the model gives them"),
)
_told: set[str] = set()


def check_settings(settings: RunSettings, mode: str, is_cs: bool, execution_mode: str) -> None:
    """Check what can be known before model_fn is called.

    Args:
        settings: Of the run.
        mode: One of ModeKeys.
        is_cs: Whether the run is on a CS system.
        execution_mode: "pipelined" or "weight_streaming".

    Raises:
        ValueError: If several replicas are asked for in weight streaming, with the text of 1.8.
    """
    if not is_cs or not wants_replicas(settings, execution_mode):
        return
    if execution_mode == WEIGHT_STREAMING:
        raise ValueError("Multi-replica training is not possible in weight_streaming execution strategy.")
    if mode != ModeKeys.TRAIN:
        run_log.warning("Multireplica is only supported in `train` mode. Disabling it for %s mode.", mode)
        return
    run_log.info(
        "Multi-replica training: one replica computes the whole batch here. Replicas share a batch and add up their "
        "gradients after each step, so that the result is the same."
    )


def check_evaluation_steps(settings: RunSettings, is_cs: bool, steps: int | None) -> None:
    """Check that an evaluation on a CS system has a number of steps. The appliance (1.6 to 1.8) needs none.

    Raises:
        ValueError: If it has none, with the text of 1.6.
    """
    if is_cs and steps is None and settings.execution_mode is None:
        raise ValueError("When performing eval on the Cerebras System, eval_steps must be provided.")


def check_training(model: Model, hooks: Sequence[Any], is_cs: bool, execution_mode: str) -> None:
    """Check a model for a training run.

    Raises:
        CerebrasError: If it has what the original refuses on a CS system.
    """
    if not is_cs:
        return
    if model.spec.eval_metric_ops:
        raise CerebrasError("[Unsupported TensorFlow] Detected unsupported eval_metric_ops in CS system training run.")
    if hooks:
        raise CerebrasError(
            "User hooks are not supported in a run on the CS system. Leave out hooks=, or train without cs_ip, "
            "where all hooks of tf.compat.v1.train work."
        )
    if execution_mode == PIPELINED and not env.skips_checkpoint_size_check():
        size_mb = checkpoint_bytes(model.saved_names().values()) >> 20
        if size_mb > MAX_CHECKPOINT_MB:
            raise CerebrasError(
                f"Calculated checkpoint size is {size_mb}MB, but it should not exceed {MAX_CHECKPOINT_MB}MB. "
                f"Use weight streaming, or set {env.SKIP_CKPT_SIZE_CHECK}=1."
            )


def checkpoint_bytes(variables: Any) -> int:
    """Return the bytes [B] of variables in a checkpoint."""
    return sum(
        int(np.prod(variable.shape.as_list(), dtype=np.int64)) * variable.dtype.base_dtype.size
        for variable in variables
    )


def wants_replicas(settings: RunSettings, execution_mode: str) -> bool:
    """Whether the settings for the original's compiler ask for as many replicas as fit (target_num_replicas = -1).

    The appliance's are options of the pipeline, by their name: scripts of 1.7 and 1.8 set them in either mode.
    """
    full_config = settings.stack_params.get("config") if settings.stack_params is not None else None
    if getattr(full_config, "target_num_replicas", 0) == -1:
        return True
    if execution_mode == WEIGHT_STREAMING:
        return False
    options = getattr(getattr(settings.cs.debug_args, "debug_crd", None), "pipeline_options", None)
    try:
        given = json.loads(getattr(options, "full_config", "") or "{}")
    except ValueError:
        return False
    return isinstance(given, dict) and -1 in (given.get("target_num_replicas"), given.get("targetNumReplicas"))


def note_params(params: Any) -> None:
    """Say once, of settings that only the original's estimator read from params, that they change nothing here."""
    for section, key, why in _PARAMS:
        given = params.get(section) if isinstance(params, Mapping) else None
        value = given.get(key) if isinstance(given, Mapping) else None
        if value and key not in _told:
            _told.add(key)
            run_log.info(
                "params: noted, without effect on the simulated system: %s.%s=%r (%s).", section, key, value, why
            )
