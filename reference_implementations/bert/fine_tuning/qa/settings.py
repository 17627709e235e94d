"""The sections of params.yaml of the model that answers questions; no TensorFlow here."""

from __future__ import annotations

from reference_implementations.bert.fine_tuning.settings import EvalFineTuningInput, TrainFineTuningInput
from reference_implementations.bert.settings import BertSettings
from reference_implementations.common.sections import CsSettings, OptimizerSettings, RunSettings

SECTIONS: dict[str, type] = {
    "train_input": TrainFineTuningInput,
    "eval_input": EvalFineTuningInput,
    "model": BertSettings,
    "optimizer": OptimizerSettings,
    "runconfig": RunSettings,
    "csconfig": CsSettings,
}
