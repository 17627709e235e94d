"""Batches for a model that predicts the next token: the input_fns of sections `train_input` and `eval_input`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from reference_implementations.common.data.text import text_dataset
from reference_implementations.common.data.tokens import token_dataset
from reference_implementations.common.settings import check_section
from reference_implementations.common.text_settings import EvalTextInput, TextInput, TrainTextInput


def train_input_fn(params: Mapping[str, Any], input_context: Any = None) -> tf.data.Dataset:
    """Return the training batches of section `train_input`."""
    return _dataset(check_section(params["train_input"], TrainTextInput, "train_input", "params"), input_context)


def eval_input_fn(params: Mapping[str, Any], input_context: Any = None) -> tf.data.Dataset:
    """Return the evaluation batches of section `eval_input`."""
    return _dataset(check_section(params["eval_input"], EvalTextInput, "eval_input", "params"), input_context)


def _dataset(settings: TextInput, input_context: Any) -> tf.data.Dataset:
    return (text_dataset if settings.data_file is not None else token_dataset)(settings, input_context)
