"""The roles of train_and_evaluate in a TF_CONFIG cluster: parameter server and trainer."""

from __future__ import annotations

import time
from typing import Any

from cerebras_tensorflow.estimator.config.run_settings import RunSettings, run_settings
from cerebras_tensorflow.estimator.distributed.server import start_server
from cerebras_tensorflow.logs import run_log

_DELAY_PER_WORKER_S = 5
_MAX_DELAY_S = 60


def serve_parameters(config: Any) -> None:
    """Hold variables for the trainers. Does not return: the launcher of the cluster ends the process.

    Raises:
        ValueError: If this task is the only one of its cluster.
    """
    server = start_server(run_settings(config))
    if server is None:
        raise ValueError("A parameter server needs other tasks in the cluster of TF_CONFIG.")
    server.join()


def join_cluster(config: Any) -> Any:
    """Start this trainer's server and return it. A worker then waits, to spread the first updates over time."""
    settings = run_settings(config)
    server = start_server(settings)
    delay_s = worker_delay_s(settings)
    if delay_s > 0:
        run_log.info("Waiting %d secs before starting training.", delay_s)
        time.sleep(delay_s)
    return server


def worker_delay_s(settings: RunSettings) -> int:
    """Return how long a worker waits before it trains [s]; 0 for other tasks."""
    distribution = settings.distribution
    if distribution.task_type != "worker":
        return 0
    longest = distribution.experimental_max_worker_delay_secs
    return min(_MAX_DELAY_S if longest is None else longest, (distribution.task_id + 1) * _DELAY_PER_WORKER_S)
