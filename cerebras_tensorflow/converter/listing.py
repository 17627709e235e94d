"""The tables of models and formats that `convert_checkpoint list` prints."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from tabulate import tabulate

from cerebras_tensorflow.converter import releases
from cerebras_tensorflow.converter.models import MODELS
from cerebras_tensorflow.converter.rules import CS, CS_OLD, HF, TF, Model, family

_NOTES_WIDTH = 60


def models() -> str:
    """Return the names of all models, as a table of one column."""
    return tabulate([[name] for name in sorted(MODELS)], headers=["model"], tablefmt="fancy_grid")


def converters(names: Sequence[str], hide_notes: bool = False) -> str:
    """Return a table with a row for each converter of some models; each works in both directions."""
    rows = []
    for name in names:
        model = MODELS[name]
        for first, second in (*model.pairs(), *releases.pairs(model)):
            notes = "\n".join(textwrap.wrap(_notes(model, first, second), _NOTES_WIDTH))
            row = [name, f"{first}\n{second}", f"{second}\n{first}"]
            rows.append(row if hide_notes else [*row, notes])
    headers = ["model", "src-fmt", "tgt-fmt", *([] if hide_notes else ["notes"])]
    # disable_numparse: formats are words, so do not align them as numbers.
    return tabulate(rows, headers=headers, tablefmt="fancy_grid", disable_numparse=True)


def _notes(model: Model, first: str, second: str) -> str:
    notes = f"{_class(model, first)} <-> {_class(model, second)}"
    if {family(first), family(second)} <= {CS, CS_OLD}:
        if CS_OLD in (first, second):
            return f"{notes}; optimizer state is left out"
        return notes
    return f"{notes}; {model.caveat}" if model.caveat else notes


def _class(model: Model, name: str) -> str:
    if name == HF:
        return f"HF {model.hf_class}"
    if name == TF:
        return f"TF reference_implementations {model.name.removesuffix('-headless')}"
    return f"CS {name.removeprefix('cs-')} {model.cs_class}"
