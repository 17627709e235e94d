"""TensorFlow's gRPC server of this task in a TF_CONFIG cluster."""

from __future__ import annotations

from functools import cache
from typing import Any

import tensorflow as tf

from cerebras_tensorflow.estimator.config.run_settings import RunSettings
from cerebras_tensorflow.logs import run_log


def start_server(settings: RunSettings) -> Any:
    """Start the server of this task; return None if the task is the only one of its cluster.

    The server belongs to TensorFlow. It listens on all interfaces, and anybody who reaches it may run code as you.
    """
    distribution = settings.distribution
    if not distribution.master:
        run_log.info("Skip starting Tensorflow server as there is only one node in the cluster.")
        return None
    _warn_of_exposure()
    run_log.info("Start Tensorflow server.")
    config = tf.compat.v1.ConfigProto()
    if settings.session_config is not None:
        config.gpu_options.CopyFrom(settings.session_config.gpu_options)
    return tf.distribute.Server(
        distribution.cluster_spec,
        job_name=distribution.task_type,
        task_index=distribution.task_id,
        config=config,
        protocol=distribution.protocol,
    )


@cache
def _warn_of_exposure() -> None:
    """Say once per process who reaches the server: TensorFlow uses only the port of its address in TF_CONFIG."""
    run_log.warning(
        "TensorFlow's server of this task has no authentication and no encryption, and listens on all interfaces even "
        "if its address in TF_CONFIG is loopback: whoever reaches its port may run code as you. Use such clusters in a "
        "private network only."
    )
