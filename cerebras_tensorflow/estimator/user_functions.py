"""Call a user's function with only the arguments that it takes."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any


def parameters_of(function: Callable[..., Any]) -> set[str]:
    """Names of a function's parameters, and "**" if it takes **kwargs or has no signature."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return {"**"}
    names = {parameter.name for parameter in parameters if parameter.kind != inspect.Parameter.VAR_KEYWORD}
    if any(parameter.kind == inspect.Parameter.VAR_KEYWORD for parameter in parameters):
        names.add("**")
    return names


def call_with(function: Callable[..., Any], offered: Mapping[str, Any], *positional: Any) -> Any:
    """Call a function with the offered keyword arguments that it takes."""
    taken = parameters_of(function)
    return function(*positional, **{name: value for name, value in offered.items() if name in taken or "**" in taken})
