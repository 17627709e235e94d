"""Trains and evaluates T5: python run.py --params configs/params_tiny.yaml --mode train --max_steps 100."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[2]))

from reference_implementations.common.run import ReferenceModel, run
from reference_implementations.t5.settings import SECTIONS

MODEL = ReferenceModel(
    sections=SECTIONS,
    model_fn="reference_implementations.t5.model:model_fn",
    train_input_fn="reference_implementations.t5.data:train_input_fn",
    eval_input_fn="reference_implementations.t5.data:eval_input_fn",
)

if __name__ == "__main__":
    sys.exit(run(MODEL))
