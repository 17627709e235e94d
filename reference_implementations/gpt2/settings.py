"""The sections of GPT-2's and GPT-3's params.yaml; no TensorFlow here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from cerebras_tensorflow.errors import SettingsError
from reference_implementations.common.sections import CsSettings, OptimizerSettings, RunSettings
from reference_implementations.common.text_settings import EvalTextInput, TrainTextInput


@dataclass(frozen=True)
class Gpt2Settings:
    """Section `model`; the defaults are those of GPT-2 small (124 million parameters)."""

    vocab_size: int = 50257
    hidden_size: int = 768
    num_hidden_layers: int = 12
    num_heads: int = 12
    filter_size: int = 3072
    max_position_embeddings: int = 1024
    nonlinearity: Literal["gelu", "gelu_new", "relu"] = "gelu_new"
    dropout_rate: float = 0.1  # on embeddings and on the output of attention and feed-forward
    attention_dropout_rate: float = 0.1
    layer_norm_epsilon: float = 1e-5
    initializer_range: float = 0.02
    share_embedding_weights: bool = True
    mixed_precision: bool = False  # true: bfloat16 compute; variables, norms, softmax and loss stay float32

    def __post_init__(self) -> None:
        if self.hidden_size % self.num_heads:
            raise SettingsError(f"hidden_size {self.hidden_size} is not a multiple of num_heads {self.num_heads}")


SECTIONS: dict[str, type] = {
    "train_input": TrainTextInput,
    "eval_input": EvalTextInput,
    "model": Gpt2Settings,
    "optimizer": OptimizerSettings,
    "runconfig": RunSettings,
    "csconfig": CsSettings,
}
