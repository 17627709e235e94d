"""Trains and evaluates Llama: python run.py --params configs/params_tiny.yaml --mode train --max_steps 100."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[2]))

from reference_implementations.common.run import ReferenceModel, run
from reference_implementations.llama.settings import SECTIONS

MODEL = ReferenceModel(
    sections=SECTIONS,
    model_fn="reference_implementations.llama.model:model_fn",
    train_input_fn="reference_implementations.llama.data:train_input_fn",
    eval_input_fn="reference_implementations.llama.data:eval_input_fn",
)

if __name__ == "__main__":
    sys.exit(run(MODEL))
