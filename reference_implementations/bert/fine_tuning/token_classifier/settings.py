"""The sections of the token classifier's params.yaml; no TensorFlow here."""

from __future__ import annotations

from dataclasses import dataclass

from reference_implementations.bert.fine_tuning.settings import EvalFineTuningInput, TrainFineTuningInput
from reference_implementations.bert.settings import BertSettings
from reference_implementations.common.sections import CsSettings, OptimizerSettings, RunSettings


@dataclass(frozen=True)
class TokenClassifierSettings(BertSettings):
    """Section `model`."""

    num_classes: int = 2
    encoder_output_dropout_rate: float = 0.1


SECTIONS: dict[str, type] = {
    "train_input": TrainFineTuningInput,
    "eval_input": EvalFineTuningInput,
    "model": TokenClassifierSettings,
    "optimizer": OptimizerSettings,
    "runconfig": RunSettings,
    "csconfig": CsSettings,
}
