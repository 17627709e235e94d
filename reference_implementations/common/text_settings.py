"""The `train_input` and `eval_input` sections of models that predict the next token; no TensorFlow here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from cerebras_tensorflow.errors import SettingsError


@dataclass(frozen=True)
class TextInput:
    """A text file, cut into windows, where each byte is a token; or folders of HDF5 or TFRecord files of tokens.

    scripts/convert_dataset_to_hdf5.py makes such folders.
    """

    batch_size: int
    max_sequence_length: int
    data_file: str | None = None  # a text; relative to the folder of the params file
    data_dir: str | tuple[str, ...] | None = None  # folders of *.h5 or *.tfrecord* files
    data_processor: Literal["GptHDF5DataProcessor", "GptTfRecordsProcessor"] | None = (
        None  # None: by what is in data_dir
    )
    shuffle: bool = False
    shuffle_seed: int = 0
    shuffle_buffer: int = 10_000  # samples; for TFRecord files only: other data is shuffled as a whole
    repeat: bool = False
    micro_batch_size: int | str | dict[str, Any] | None = None  # samples at a time: a number, auto, none or explore
    skip_steps: int = 0  # batches to leave out at the start; run.py sets it when a run resumes

    def __post_init__(self) -> None:
        if (self.data_file is None) == (self.data_dir is None):
            raise SettingsError("expected either data_file (a text) or data_dir (folders of HDF5 or TFRecord files)")
        if self.data_processor is not None and self.data_dir is None:
            raise SettingsError(f"data_processor {self.data_processor} reads data_dir, which is not given")


@dataclass(frozen=True)
class TrainTextInput(TextInput):
    """Section `train_input`: shuffled and without end by default."""

    shuffle: bool = True
    repeat: bool = True


@dataclass(frozen=True)
class EvalTextInput(TextInput):
    """Section `eval_input`: in order, once."""
