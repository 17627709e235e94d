"""The `train_input` and `eval_input` sections that all fine-tuning heads share; no TensorFlow here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from cerebras_tensorflow.errors import SettingsError


@dataclass(frozen=True)
class FineTuningInput:
    """A text to make the task's samples from, where each byte is a token; or folders of TFRecord files of samples."""

    batch_size: int
    max_sequence_length: int
    data_file: str | None = None  # a text; relative to the folder of the params file
    data_dir: str | tuple[str, ...] | None = None  # folders of *.tfrecord* files; data.py says what they hold
    shuffle: bool = False
    shuffle_seed: int = 0
    shuffle_buffer: int = 10_000  # samples; for TFRecord files only: a text's samples are shuffled as a whole
    repeat: bool = False
    micro_batch_size: int | str | dict[str, Any] | None = None  # samples at a time: a number, auto, none or explore
    skip_steps: int = 0  # batches to leave out at the start; run.py sets it when a run resumes

    def __post_init__(self) -> None:
        for name, least in (("batch_size", 1), ("max_sequence_length", 16), ("shuffle_buffer", 1)):
            if getattr(self, name) < least:
                raise SettingsError(f"{name} is {getattr(self, name)}; expected at least {least}")
        if (self.data_file is None) == (self.data_dir is None):
            raise SettingsError("expected either data_file (a text) or data_dir (folders of TFRecord files)")


@dataclass(frozen=True)
class TrainFineTuningInput(FineTuningInput):
    """Section `train_input`: shuffled and without end by default."""

    shuffle: bool = True
    repeat: bool = True


@dataclass(frozen=True)
class EvalFineTuningInput(FineTuningInput):
    """Section `eval_input`: in order, once."""
