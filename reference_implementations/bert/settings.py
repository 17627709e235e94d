"""The sections of BERT's params.yaml; no TensorFlow here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from cerebras_tensorflow.errors import SettingsError
from reference_implementations.common.sections import CsSettings, OptimizerSettings, RunSettings


@dataclass(frozen=True)
class BertSettings:
    """Section `model`; the defaults are those of BERT base."""

    vocab_size: int = 30522
    hidden_size: int = 768
    num_hidden_layers: int = 12
    num_heads: int = 12
    filter_size: int = 3072
    max_position_embeddings: int = 512
    nonlinearity: Literal["gelu", "gelu_new", "relu"] = "gelu"
    dropout_rate: float = 0.1
    attention_dropout_rate: float = 0.1
    layer_norm_epsilon: float = 1e-12
    initializer_range: float = 0.02
    disable_nsp: bool = False  # true: no next-sentence loss
    mixed_precision: bool = False  # true: bfloat16 compute; variables, norms, softmax and loss stay float32

    def __post_init__(self) -> None:
        if self.hidden_size % self.num_heads:
            raise SettingsError(f"hidden_size {self.hidden_size} is not a multiple of num_heads {self.num_heads}")


@dataclass(frozen=True)
class BertTextInput:
    """Pairs of pieces of a text, where each byte is a token and ids 256 to 259 are special; or TFRecord files."""

    batch_size: int
    max_sequence_length: int
    max_predictions_per_seq: int
    data_file: str | None = None  # a text; relative to the folder of the params file
    data_dir: str | tuple[str, ...] | None = None  # folders of *.tfrecord* files, masked already; data.py has the names
    masked_lm_prob: float = 0.15
    shuffle: bool = False
    shuffle_seed: int = 0
    shuffle_buffer: int = 10_000  # samples; for TFRecord files only
    repeat: bool = False
    micro_batch_size: int | str | dict[str, Any] | None = None  # samples at a time: a number, auto, none or explore
    skip_steps: int = 0  # batches to leave out at the start; run.py sets it when a run resumes

    def __post_init__(self) -> None:
        if (self.data_file is None) == (self.data_dir is None):
            raise SettingsError("expected either data_file (a text) or data_dir (folders of TFRecord files)")
        if self.batch_size < 1:
            raise SettingsError(f"batch_size is {self.batch_size}; expected at least 1")
        if self.max_sequence_length < 8:
            raise SettingsError(f"max_sequence_length is {self.max_sequence_length}; expected at least 8")
        if not 1 <= self.max_predictions_per_seq <= self.max_sequence_length - 3:
            raise SettingsError(
                f"max_predictions_per_seq is {self.max_predictions_per_seq}; expected 1 to max_sequence_length - 3 = "
                f"{self.max_sequence_length - 3}"
            )


@dataclass(frozen=True)
class TrainBertInput(BertTextInput):
    """Section `train_input`: shuffled and without end by default."""

    shuffle: bool = True
    repeat: bool = True


@dataclass(frozen=True)
class EvalBertInput(BertTextInput):
    """Section `eval_input`: in order, once."""


SECTIONS: dict[str, type] = {
    "train_input": TrainBertInput,
    "eval_input": EvalBertInput,
    "model": BertSettings,
    "optimizer": OptimizerSettings,
    "runconfig": RunSettings,
    "csconfig": CsSettings,
}
