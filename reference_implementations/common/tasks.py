"""Which share of the data a process reads, where several read together."""

from __future__ import annotations

from typing import Any


def num_tasks(input_context: Any = None) -> int:
    """Return how many processes share the data.

    Args:
        input_context: What the Estimator gave the input_fn, as tf.distribute.InputContext has it; None: one process.
    """
    return int(input_context.num_input_pipelines) if input_context else 1


def task_id(input_context: Any = None) -> int:
    """Return which of them this process is, from 0; it reads batches task_id, task_id + num_tasks, ..."""
    return int(input_context.input_pipeline_id) if input_context else 0
