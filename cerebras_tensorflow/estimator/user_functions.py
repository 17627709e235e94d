"""Calling a user's functions with the arguments that they take."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any


def parameters_of(function: Callable[..., Any]) -> set[str]:
    """Names of the parameters that a function takes; with **kwargs, "**" is among them."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return {"**"}
    names = {parameter.name for parameter in parameters if parameter.kind != inspect.Parameter.VAR_KEYWORD}
    if any(parameter.kind == inspect.Parameter.VAR_KEYWORD for parameter in parameters):
        names.add("**")
    return names


def call_with(function: Callable[..., Any], offered: Mapping[str, Any], *positional: Any) -> Any:
    """Call a function with those of the offered keyword arguments that it takes."""
    taken = parameters_of(function)
    return function(*positional, **{name: value for name, value in offered.items() if name in taken or "**" in taken})
