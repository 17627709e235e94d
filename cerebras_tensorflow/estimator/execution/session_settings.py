"""The ConfigProto and the SessionCreator of a run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from cerebras_tensorflow.config import env
from cerebras_tensorflow.config.env import WEIGHT_STREAMING
from cerebras_tensorflow.estimator.config.run_settings import RunSettings
from cerebras_tensorflow.logs import run_log
from cerebras_tensorflow.runtime.session import ProgramSession

_REWRITES = 1  # one run of TensorFlow's meta optimizer; ONE in the protobuf


class SessionCreator(tf.compat.v1.train.SessionCreator):
    """Makes the session after MonitoredSession has called the hooks' begin.

    Args:
        create: Returns the session.
    """

    def __init__(self, create: Callable[[], ProgramSession]) -> None:
        self._create = create

    def create_session(self) -> ProgramSession:
        """Make the session."""
        return self._create()


def session_config_of(settings: RunSettings, mode: str) -> Any:
    """Return the ConfigProto of a run: a copy of the caller's, with XLA if the settings ask for it.

    Call it before anything of the run uses a session: it starts TensorFlow's threads if the caller limits them.
    """
    result = tf.compat.v1.ConfigProto()
    if settings.session_config is not None:
        result.CopyFrom(settings.session_config)
    if settings.cs.use_xla:
        if mode == WEIGHT_STREAMING:
            run_log.warning("use_xla is ignored: weight streaming runs without XLA.")
        else:
            env.allow_xla_on_cpu()
            result.graph_options.optimizer_options.global_jit_level = tf.compat.v1.OptimizerOptions.ON_2
    if result.intra_op_parallelism_threads or result.inter_op_parallelism_threads:
        # The first session of a process sets its number of threads. Here others come before that of the training step.
        tf.compat.v1.Session(graph=tf.Graph(), config=result).close()
    return result


def let_tensorflow_rewrite(session_config: Any) -> None:
    """Let TensorFlow fuse ops. Only for runs whose two modes need not agree to the last bit."""
    session_config.graph_options.rewrite_options.meta_optimizer_iterations = _REWRITES
