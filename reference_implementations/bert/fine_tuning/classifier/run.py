"""Fine-tunes and evaluates BERT: python run.py --params configs/params_tiny.yaml --mode train_and_eval."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[4]))

from reference_implementations.bert.fine_tuning.classifier.settings import SECTIONS
from reference_implementations.common.run import ReferenceModel, run

MODEL = ReferenceModel(
    sections=SECTIONS,
    model_fn="reference_implementations.bert.fine_tuning.classifier.model:model_fn",
    train_input_fn="reference_implementations.bert.fine_tuning.classifier.data:train_input_fn",
    eval_input_fn="reference_implementations.bert.fine_tuning.classifier.data:eval_input_fn",
)

if __name__ == "__main__":
    sys.exit(run(MODEL))
