"""global_batch_size, of `runconfig` or `train_input`: the estimator reads it in `train_input`, input_fn does not."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

KEY = "global_batch_size"


def take(content: dict[str, Any]) -> int | None:
    """Return the size and remove it from `train_input`, whose batches then have it.

    Args:
        content: Of a params file; an option is in its section `runconfig`.
    """
    section = content.get("train_input")
    if not isinstance(section, dict):
        return None
    section = dict(section)
    of_section = section.pop(KEY, None)
    chosen = content["runconfig"].get(KEY)
    size = chosen if chosen is not None else of_section
    content["train_input"] = section if size is None else {**section, "batch_size": size}
    return size


def without_size(input_fn: Callable[..., Any]) -> Callable[..., Any]:
    """Return an input_fn that calls another without the size in `train_input`, where its settings have no such key."""

    @functools.wraps(input_fn)  # the arguments that it names
    def make(params: Mapping[str, Any], *arguments: Any, **named: Any) -> Any:
        section = {key: value for key, value in params.get("train_input", {}).items() if key != KEY}
        return input_fn({**params, "train_input": section}, *arguments, **named)

    return make
