"""The sections of fc_mnist's params.yaml; no TensorFlow here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from cerebras_tensorflow.errors import SettingsError
from reference_implementations.common.sections import CsSettings, OptimizerSettings, RunSettings


@dataclass(frozen=True)
class FcMnistSettings:
    """Section `model`."""

    hidden_sizes: tuple[int, ...] = (500, 300)
    num_classes: int = 10
    activation_fn: Literal["relu", "gelu", "tanh"] = "relu"
    dropout_rate: float = 0.0
    mixed_precision: bool = False  # true: bfloat16 compute; variables and loss stay float32


@dataclass(frozen=True)
class ImageInput:
    """Images and their classes: the digits of 8 x 8 pixels in this repository, or a folder with the MNIST files."""

    batch_size: int
    data_file: str | None = None  # CSV, gzipped or not: pixels, then the class, in each line
    data_dir: str | None = None  # train-images-idx3-ubyte and the three others of MNIST, gzipped or not
    max_pixel: int = 255  # pixels are divided by this value
    split: Literal["train", "test"] = "train"
    num_test: int = 297  # size of the test split, at the end of data_file
    shuffle: bool = False
    shuffle_seed: int = 0
    repeat: bool = False
    micro_batch_size: int | str | dict[str, Any] | None = None  # samples at a time: a number, auto, none or explore
    skip_steps: int = 0  # batches to leave out at the start; run.py sets it when a run resumes

    def __post_init__(self) -> None:
        if self.batch_size < 1:
            raise SettingsError(f"batch_size is {self.batch_size}; expected at least 1")
        if (self.data_file is None) == (self.data_dir is None):
            raise SettingsError("give either data_file or data_dir")


@dataclass(frozen=True)
class TrainImageInput(ImageInput):
    """Section `train_input`: shuffled and without end by default."""

    shuffle: bool = True
    repeat: bool = True


@dataclass(frozen=True)
class EvalImageInput(ImageInput):
    """Section `eval_input`: the test split, in order, once."""

    split: Literal["train", "test"] = "test"


SECTIONS: dict[str, type] = {
    "train_input": TrainImageInput,
    "eval_input": EvalImageInput,
    "model": FcMnistSettings,
    "optimizer": OptimizerSettings,
    "runconfig": RunSettings,
    "csconfig": CsSettings,
}
