"""Checks of the original for runs on a CS system, and settings of old scripts that have no effect here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from cerebras_tensorflow.config import env
from cerebras_tensorflow.config.env import PIPELINED, WEIGHT_STREAMING
from cerebras_tensorflow.errors import CerebrasError
from cerebras_tensorflow.estimator.config.run_settings import RunSettings
from cerebras_tensorflow.estimator.execution import replicas
from cerebras_tensorflow.estimator.mode_keys import ModeKeys
from cerebras_tensorflow.estimator.model.model_call import Model
from cerebras_tensorflow.logs import run_log

MAX_CHECKPOINT_MB = 9024
"""Limit of a pipelined run's checkpoints in 1.4 and 1.5 [2**20 B]. Weight streaming has none: GPT-J takes 24 GB."""

_PARAMS = (
    ("runconfig", "use_cs_grad_accum", "micro_batch_size decides whether a batch is computed in parts"),
    ("model", "precision_opt_level", "tensors keep the dtypes of the model"),
)
_logged_params: set[str] = set()


def check_settings(settings: RunSettings, mode: str, is_cs: bool, execution_mode: str) -> None:
    """Check what is known before the call of model_fn.

    Args:
        settings: Settings of the run.
        mode: One of ModeKeys.
        is_cs: Whether the run is on a CS system.
        execution_mode: "pipelined" or "weight_streaming".

    Raises:
        ValueError: If the settings ask for several replicas in weight streaming, with the text of 1.8.
    """
    if not is_cs or not replicas.asked(settings, execution_mode):
        return
    if execution_mode == WEIGHT_STREAMING:
        raise ValueError("Multi-replica training is not possible in weight_streaming execution strategy.")
    if mode != ModeKeys.TRAIN:
        run_log.warning("Multireplica is only supported in `train` mode. Disabling it for %s mode.", mode)


def check_evaluation_steps(settings: RunSettings, is_cs: bool, steps: int | None) -> None:
    """Check that an evaluation on a CS system has a number of steps. The appliance (1.6 to 1.8) needs none.

    Raises:
        ValueError: If the number is missing, with the text of 1.6.
    """
    if is_cs and steps is None and settings.execution_mode is None:
        raise ValueError("When performing eval on the Cerebras System, eval_steps must be provided.")


def check_training(model: Model, hooks: Sequence[Any], is_cs: bool, execution_mode: str) -> None:
    """Check a model for a training run.

    Raises:
        CerebrasError: If the original refuses this model on a CS system.
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
    """Return the size of variables in a checkpoint [B]."""
    return sum(
        int(np.prod(variable.shape.as_list(), dtype=np.int64)) * variable.dtype.base_dtype.size
        for variable in variables
    )


def note_params(params: Any) -> None:
    """Log once per setting in params that only the original's estimator uses: it has no effect here."""
    for section, key, why in _PARAMS:
        given = params.get(section) if isinstance(params, Mapping) else None
        value = given.get(key) if isinstance(given, Mapping) else None
        if value and key not in _logged_params:
            _logged_params.add(key)
            run_log.info(
                "params: noted, without effect on the simulated system: %s.%s=%r (%s).", section, key, value, why
            )
