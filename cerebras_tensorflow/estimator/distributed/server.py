"""TensorFlow's gRPC server of this task in a TF_CONFIG cluster."""

from __future__ import annotations

import os
from functools import cache
from typing import Any

import tensorflow as tf

from cerebras_tensorflow.estimator.config.run_settings import Distribution, RunSettings
from cerebras_tensorflow.logs import run_log
from cerebras_tensorflow.runtime.host.same_user import SameUserDoor, is_of_this_machine


def start_server(settings: RunSettings) -> Any:
    """Start the server of this task; return None if the task is the only one of its cluster.

    The server belongs to TensorFlow. It listens on all interfaces and asks for no secret. If all tasks are on this
    machine, only processes of this user can connect. Otherwise anybody who reaches it may run code as you.
    """
    distribution = settings.distribution
    if not distribution.master:
        run_log.info("Skip starting Tensorflow server as there is only one node in the cluster.")
        return None
    run_log.info("Start Tensorflow server.")
    config = tf.compat.v1.ConfigProto()
    if settings.session_config is not None:
        config.gpu_options.CopyFrom(settings.session_config.gpu_options)
    server = tf.distribute.Server(
        distribution.cluster_spec,
        job_name=distribution.task_type,
        task_index=distribution.task_id,
        config=config,
        protocol=distribution.protocol,
        start=False,  # it listens, but answers no call yet
    )
    _protect(distribution)
    server.start()
    return server


def _protect(distribution: Distribution) -> None:
    """Keep strangers away from the server of this task if possible, and say so if it is not."""
    cluster = distribution.cluster_spec
    addresses = [address for job in cluster.jobs for address in cluster.job_tasks(job)]
    if not is_of_this_machine(address.rpartition(":")[0].strip("[]") for address in addresses):
        _warn_of_exposure("the cluster has tasks on several machines")
        return
    port = cluster.task_address(distribution.task_type, distribution.task_id).rpartition(":")[2]
    try:
        SameUserDoor(int(port))
    except OSError as error:
        _warn_of_exposure(f"this machine cannot keep others away from its port ({error})")
        return
    run_log.info("Only processes of user %d on this machine can connect to the server.", os.geteuid())


@cache
def _warn_of_exposure(why: str) -> None:
    """Say once per process that the server is open."""
    run_log.warning(
        "TensorFlow's server of this task has no authentication and no encryption, and listens on all interfaces. It "
        "is open to everybody who reaches its port, because %s: whoever does may run code as you. Use such clusters in "
        "a private network only.",
        why,
    )
