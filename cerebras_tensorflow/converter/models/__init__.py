"""The name tables: for each model, the place of every tensor and the name of every setting in every format.

Sources: the public Model Zoo's checkpoints (cs), transformers' classes (hf), ../../../reference_implementations (tf).
"""

from __future__ import annotations

from cerebras_tensorflow.converter.models import bert, falcon, gpt2, gptj, llama, neox, t5
from cerebras_tensorflow.converter.rules import Model

MODELS: dict[str, Model] = {
    model.name: model for module in (gpt2, gptj, neox, bert, t5, llama, falcon) for model in module.MODELS
}
