"""The sections of T5's params.yaml; no TensorFlow here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from cerebras_tensorflow.errors import SettingsError
from reference_implementations.common.sections import CsSettings, OptimizerSettings, RunSettings


@dataclass(frozen=True)
class T5Settings:
    """Section `model`; the defaults are those of T5 small (60 million parameters)."""

    src_vocab_size: int = 32128
    d_model: int = 512
    d_kv: int = 64
    d_ff: int = 2048
    encoder_num_hidden_layers: int = 6
    decoder_num_hidden_layers: int = 6
    num_heads: int = 8
    relative_attention_num_buckets: int = 32
    relative_attention_max_distance: int = 128
    nonlinearity: Literal["relu", "gelu", "gelu_new"] = "relu"
    dropout_rate: float = 0.1
    layer_norm_epsilon: float = 1e-6
    use_t5_layer_norm: bool = True  # false: norms with mean and beta, as in the public Model Zoo's T5
    share_embedding_weights: bool = True
    mixed_precision: bool = False  # true: bfloat16 compute; variables, norms, softmax and loss stay float32


@dataclass(frozen=True)
class SpanInput:
    """A text with missing spans, where each byte is a token and ids from 256 are special; or TFRecord files."""

    batch_size: int
    max_sequence_length: int  # bytes of text in a sample; for TFRecord files, tokens of input_ids
    data_file: str | None = None  # a text; relative to the folder of the params file
    num_spans: int = 1  # missing spans, one in each equal part of the sample
    span_length: int = 3
    data_dir: str | tuple[str, ...] | None = None  # folders of *.tfrecord* files; data.py has the names
    max_target_length: int = 114  # for TFRecord files: tokens of the decoder
    shuffle_buffer: int = 10_000  # samples; for TFRecord files only
    shuffle: bool = False
    shuffle_seed: int = 0
    repeat: bool = False
    micro_batch_size: int | str | dict[str, Any] | None = None  # samples at a time: a number, auto, none or explore
    skip_steps: int = 0  # batches to leave out at the start; run.py sets it when a run resumes

    def __post_init__(self) -> None:
        if self.batch_size < 1 or self.num_spans < 1 or self.span_length < 1:
            raise SettingsError("batch_size, num_spans and span_length must be at least 1")
        if (self.data_file is None) == (self.data_dir is None):
            raise SettingsError("expected either data_file (a text) or data_dir (folders of TFRecord files)")
        if self.max_sequence_length % self.num_spans:
            raise SettingsError(
                f"max_sequence_length {self.max_sequence_length} is not a multiple of num_spans {self.num_spans}"
            )
        if self.max_sequence_length // self.num_spans <= self.span_length:
            raise SettingsError(
                f"span_length {self.span_length} must be less than max_sequence_length / num_spans = "
                f"{self.max_sequence_length // self.num_spans}"
            )


@dataclass(frozen=True)
class TrainSpanInput(SpanInput):
    """Section `train_input`: shuffled and without end by default."""

    shuffle: bool = True
    repeat: bool = True


@dataclass(frozen=True)
class EvalSpanInput(SpanInput):
    """Section `eval_input`: in order, once."""


SECTIONS: dict[str, type] = {
    "train_input": TrainSpanInput,
    "eval_input": EvalSpanInput,
    "model": T5Settings,
    "optimizer": OptimizerSettings,
    "runconfig": RunSettings,
    "csconfig": CsSettings,
}
