"""Call a user's function with only the arguments that it takes."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any


def parameters_of(function: Callable[..., Any]) -> set[str]:
    """Names of a function's parameters, and "**" if it takes **kwargs or has no signature.

    The keyword arguments of a functools.partial are left out: it keeps its own values.
    """
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return {"**"}
    variable = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
    names = {parameter.name for parameter in parameters if parameter.kind not in variable} - _bound(function)
    if any(parameter.kind == inspect.Parameter.VAR_KEYWORD for parameter in parameters):
        names.add("**")
    return names


def call_with(function: Callable[..., Any], offered: Mapping[str, Any], *positional: Any) -> Any:
    """Call a function with the offered keyword arguments that it takes.

    Raises:
        TypeError: If it cannot be called.
    """
    if not callable(function):
        raise TypeError(f"unsupported callable: expected a function, given: {function!r}")
    taken, bound = parameters_of(function), _bound(function)
    words = {name: value for name, value in offered.items() if name in taken or ("**" in taken and name not in bound)}
    return function(*positional, **words)


def _bound(function: Callable[..., Any]) -> set[str]:
    """Names of the keyword arguments that a functools.partial has."""
    return set(function.keywords) if isinstance(function, functools.partial) else set()


def call_input_fn(input_fn: Callable[..., Any], offered: Mapping[str, Any]) -> Any:
    """Call an input_fn with the offered arguments that it names. As in tf.estimator, **kwargs gets none of them."""
    named = parameters_of(input_fn)
    return call_with(input_fn, {name: value for name, value in offered.items() if name in named})
