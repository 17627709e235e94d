"""Which share of the data a process reads, if several processes share it."""

from __future__ import annotations

from typing import Any


def num_tasks(input_context: Any = None) -> int:
    """Return how many processes share the data.

    Args:
        input_context: The tf.distribute.InputContext that the Estimator passes to the input_fn; None: one process.
    """
    return int(input_context.num_input_pipelines) if input_context else 1


def task_id(input_context: Any = None) -> int:
    """Return the number of this process, from 0. It reads batches task_id, task_id + num_tasks, ..."""
    return int(input_context.input_pipeline_id) if input_context else 0
