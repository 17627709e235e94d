"""Trains and evaluates GPT-3: python run.py --params configs/params_xl.yaml --mode train --max_steps 100."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[2]))

from reference_implementations.common.run import ReferenceModel, run
from reference_implementations.gpt2.settings import SECTIONS

MODEL = ReferenceModel(
    sections=SECTIONS,
    model_fn="reference_implementations.gpt2.model:model_fn",
    train_input_fn="reference_implementations.gpt2.data:train_input_fn",
    eval_input_fn="reference_implementations.gpt2.data:eval_input_fn",
)

if __name__ == "__main__":
    sys.exit(run(MODEL))
