"""The sections of the classifier's params.yaml; no TensorFlow here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from reference_implementations.bert.fine_tuning.settings import EvalFineTuningInput, TrainFineTuningInput
from reference_implementations.bert.settings import BertSettings
from reference_implementations.common.sections import CsSettings, OptimizerSettings, RunSettings


@dataclass(frozen=True)
class ClassifierSettings(BertSettings):
    """Section `model`."""

    num_labels: int = 2
    task_dropout: float = 0.1  # on the pooled output
    problem_type: Literal["single_label_classification"] = "single_label_classification"


SECTIONS: dict[str, type] = {
    "train_input": TrainFineTuningInput,
    "eval_input": EvalFineTuningInput,
    "model": ClassifierSettings,
    "optimizer": OptimizerSettings,
    "runconfig": RunSettings,
    "csconfig": CsSettings,
}
