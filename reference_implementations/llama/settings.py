"""The sections of Llama's params.yaml; no TensorFlow here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from cerebras_tensorflow.errors import SettingsError
from reference_implementations.common.sections import CsSettings, OptimizerSettings, RunSettings
from reference_implementations.common.text_settings import EvalTextInput, TrainTextInput


@dataclass(frozen=True)
class LlamaSettings:
    """Section `model`; the defaults are those of the first 7-billion-parameter model."""

    vocab_size: int = 32000
    hidden_size: int = 4096
    num_hidden_layers: int = 32
    num_heads: int = 32
    num_kv_heads: int | None = None  # key-value heads, each used by several query heads; None: num_heads
    filter_size: int = 11008
    max_position_embeddings: int = 2048
    rope_theta: float = 10000.0
    nonlinearity: Literal["silu", "gelu", "relu"] = "silu"  # of the gate
    dropout_rate: float = 0.0
    attention_dropout_rate: float = 0.0
    layer_norm_epsilon: float = 1e-6
    initializer_range: float = 0.02
    share_embedding_weights: bool = False
    mixed_precision: bool = False  # true: bfloat16 compute; variables, norms, softmax and loss stay float32

    def __post_init__(self) -> None:
        if self.hidden_size % self.num_heads or self.hidden_size // self.num_heads % 2:
            raise SettingsError(
                f"hidden_size {self.hidden_size} over num_heads {self.num_heads} must be an even whole number"
            )
        if self.num_heads % self.kv_heads:
            raise SettingsError(f"num_heads {self.num_heads} is not a multiple of num_kv_heads {self.num_kv_heads}")

    @property
    def kv_heads(self) -> int:
        """Number of key-value heads."""
        return self.num_heads if self.num_kv_heads is None else self.num_kv_heads


SECTIONS: dict[str, type] = {
    "train_input": TrainTextInput,
    "eval_input": EvalTextInput,
    "model": LlamaSettings,
    "optimizer": OptimizerSettings,
    "runconfig": RunSettings,
    "csconfig": CsSettings,
}
