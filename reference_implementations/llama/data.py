"""Llama's batches: bytes of a text file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from reference_implementations.common.settings import check_section
from reference_implementations.common.text_data import text_dataset
from reference_implementations.common.text_settings import EvalTextInput, TrainTextInput


def train_input_fn(params: Mapping[str, Any], input_context: Any = None) -> tf.data.Dataset:
    """Return the training batches of section `train_input`."""
    return text_dataset(check_section(params["train_input"], TrainTextInput, "train_input", "params"), input_context)


def eval_input_fn(params: Mapping[str, Any], input_context: Any = None) -> tf.data.Dataset:
    """Return the evaluation batches of section `eval_input`."""
    return text_dataset(check_section(params["eval_input"], EvalTextInput, "eval_input", "params"), input_context)
