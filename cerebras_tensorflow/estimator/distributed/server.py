"""TensorFlow's gRPC server of this task in a TF_CONFIG cluster."""

from __future__ import annotations

import os
from functools import cache
from typing import Any

import tensorflow as tf

from cerebras_tensorflow.config import env
from cerebras_tensorflow.estimator.config.run_settings import Distribution, RunSettings
from cerebras_tensorflow.logs import run_log
from cerebras_tensorflow.runtime.host.cluster_hosts import ClusterHosts, is_of_this_machine
from cerebras_tensorflow.runtime.host.port_guard import PortGuard


def start_server(settings: RunSettings) -> Any:
    """Start the server of this task; return None if the task is the only one of its cluster.

    The server belongs to TensorFlow. It listens on all interfaces and asks for no secret. Of this machine, only
    processes of this user can connect. Of the other machines in TF_CONFIG everybody can, and may run code as you.
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
    """Keep strangers away from the server of this task if possible, and say who can connect."""
    cluster, networks = distribution.cluster_spec, env.read().tf_config_networks
    hosts = {address.rpartition(":")[0].strip("[]") for job in cluster.jobs for address in cluster.job_tasks(job)}
    is_alone = is_of_this_machine(hosts) and not networks
    machines = None if is_alone else ClusterHosts(sorted(hosts), networks)
    port = cluster.task_address(distribution.task_type, distribution.task_id).rpartition(":")[2]
    try:
        PortGuard(int(port), machines.look_up if machines is not None else None)
    except OSError as error:
        _warn_of_exposure(f"everybody who reaches its port: this machine cannot keep others away ({error})")
        return
    if machines is not None:
        _warn_of_exposure(
            f"everybody on the machines in TF_CONFIG and {env.TF_CONFIG_NETWORKS}. A task that calls from another "
            f"address cannot connect; add its address to {env.TF_CONFIG_NETWORKS}"
        )
    run_log.info("On this machine, only processes of user %d can connect to the server.", os.geteuid())


@cache
def _warn_of_exposure(who: str) -> None:
    """Say once per process to whom the server is open."""
    run_log.warning(
        "TensorFlow's server of this task has no authentication and no encryption. Whoever connects may run code as "
        "you. Use such clusters in a private network only. It is open to %s.",
        who,
    )
