"""The sections of GPT-J's params.yaml; no TensorFlow here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from cerebras_tensorflow.errors import SettingsError
from reference_implementations.common.sections import CsSettings, OptimizerSettings, RunSettings
from reference_implementations.common.text_settings import EvalTextInput, TrainTextInput


@dataclass(frozen=True)
class GptjSettings:
    """Section `model`; the defaults are those of the 6-billion-parameter model."""

    vocab_size: int = 50400
    hidden_size: int = 4096
    num_hidden_layers: int = 28
    num_heads: int = 16
    filter_size: int = 16384
    rotary_dim: int = 64
    max_position_embeddings: int = 2048
    nonlinearity: Literal["gelu", "gelu_new", "relu"] = "gelu_new"
    embedding_dropout_rate: float = 0.0
    residual_dropout_rate: float = 0.0
    attention_dropout_rate: float = 0.0
    layer_norm_epsilon: float = 1e-5
    initializer_range: float = 0.02
    share_embedding_weights: bool = False
    mixed_precision: bool = False  # true: bfloat16 compute; variables, norms, softmax and loss stay float32

    def __post_init__(self) -> None:
        if self.hidden_size % self.num_heads:
            raise SettingsError(f"hidden_size {self.hidden_size} is not a multiple of num_heads {self.num_heads}")
        head_size = self.hidden_size // self.num_heads
        if self.rotary_dim % 2 or not 0 < self.rotary_dim <= head_size:
            raise SettingsError(f"rotary_dim is {self.rotary_dim}; expected an even number from 2 to {head_size}")


SECTIONS: dict[str, type] = {
    "train_input": TrainTextInput,
    "eval_input": EvalTextInput,
    "model": GptjSettings,
    "optimizer": OptimizerSettings,
    "runconfig": RunSettings,
    "csconfig": CsSettings,
}
