"""The tables of models and formats that `convert_checkpoint list` prints."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from tabulate import tabulate

from cerebras_tensorflow.converter import releases
from cerebras_tensorflow.converter.models import MODELS
from cerebras_tensorflow.converter.rules import CS, CS_OLD, HF, TF, Model, Release, family, release

_NOTES_WIDTH = 60


def models() -> str:
    """Return the names of all models, as a table of one column."""
    return tabulate([[name] for name in sorted(MODELS)], headers=["model"], tablefmt="fancy_grid")


def converters(names: Sequence[str], hide_notes: bool = False) -> str:
    """Return a table with a row for each converter of some models; each works in both directions."""
    rows = []
    for name in names:
        model = MODELS[name]
        shown = set()
        for first, second in (*model.pairs(), *releases.pairs(model)):
            oldest = (1, 7) if releases.is_between_releases(model, first, second) else (2, 1)
            one, other = _range(model, first, oldest), _range(model, second, oldest)
            if (one, other) in shown:
                continue
            shown.add((one, other))
            notes = "\n".join(textwrap.wrap(_notes(model, first, second, oldest), _NOTES_WIDTH))
            row = [name, f"{one}\n{other}", f"{other}\n{one}"]
            rows.append(row if hide_notes else [*row, notes])
    headers = ["model", "src-fmt", "tgt-fmt", *([] if hide_notes else ["notes"])]
    # disable_numparse: formats are words, so do not align them as numbers.
    return tabulate(rows, headers=headers, tablefmt="fancy_grid", disable_numparse=True)


def _range(model: Model, name: str, oldest: Release) -> str:
    """Return a format's name, or the range of all releases since the oldest one, which share one row."""
    newer = [other for other in model.formats if release(other) >= oldest]
    return f"{newer[0]} to {newer[-1]}" if name in newer else name


def _notes(model: Model, first: str, second: str, oldest: Release) -> str:
    if {family(first), family(second)} == {CS}:
        return f"{model.cs_class}, from any of these releases to any other"
    notes = f"{_class(model, first, oldest)} <-> {_class(model, second, oldest)}"
    if CS_OLD in (first, second):
        return f"{notes}; optimizer state is left out"
    return f"{notes}; {model.caveat}" if model.caveat else notes


def _class(model: Model, name: str, oldest: Release) -> str:
    if name == HF:
        return f"HF {model.hf_class}"
    if name == TF:
        return f"TF reference_implementations {model.name.removesuffix('-headless')}"
    return f"CS {_range(model, name, oldest).replace('cs-', '')} {model.cs_class}"
