"""The `train_input` and `eval_input` sections of models that read plain text as bytes; no TensorFlow here."""

from __future__ import annotations

from dataclasses import dataclass

from cerebras_tensorflow.errors import SettingsError


@dataclass(frozen=True)
class TextInput:
    """A text file, cut into windows; a byte is a token."""

    data_file: str  # relative to the folder of the params file
    batch_size: int
    max_sequence_length: int
    shuffle: bool = False
    shuffle_seed: int = 0
    repeat: bool = False
    skip_steps: int = 0  # batches to leave out at the start; run.py sets it when a run resumes

    def __post_init__(self) -> None:
        for name in ("batch_size", "max_sequence_length"):
            if getattr(self, name) < 1:
                raise SettingsError(f"{name} is {getattr(self, name)}; expected at least 1")


@dataclass(frozen=True)
class TrainTextInput(TextInput):
    """Section `train_input`: shuffled and without end unless said otherwise."""

    shuffle: bool = True
    repeat: bool = True


@dataclass(frozen=True)
class EvalTextInput(TextInput):
    """Section `eval_input`: in order, once."""
