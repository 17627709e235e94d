"""Restores names that Python, NumPy, SciPy, NLTK and protobuf have dropped since the old scripts were written."""

from __future__ import annotations

import collections
import collections.abc
import functools
import inspect
from types import ModuleType
from typing import Any

_COLLECTIONS = tuple(collections.abc.__all__)
_NEVER_THERE = ("Buffer",)
_NUMPY: dict[str, Any] = {
    "bool": bool,
    "int": int,
    "float": float,
    "complex": complex,
    "object": object,
    "str": str,
    "unicode": str,
    "long": int,
}
"""Name that NumPy 1.24 dropped -> the Python type that it was."""
_NUMPY_RENAMED = {
    "float_": "float64",
    "complex_": "complex128",
    "string_": "bytes_",
    "unicode_": "str_",
    "Inf": "inf",
    "Infinity": "inf",
    "infty": "inf",
    "NaN": "nan",
    "NAN": "nan",
    "product": "prod",
    "cumproduct": "cumprod",
    "sometrue": "any",
    "alltrue": "all",
    "in1d": "isin",
    "row_stack": "vstack",
    "trapz": "trapezoid",
    "round_": "round",
}
"""Name that NumPy 2 dropped -> the name that it kept."""


_NUMPY_INTERPOLATION = ("percentile", "quantile", "nanpercentile", "nanquantile")
"""Functions with the old argument `interpolation`. NumPy 1.22 renamed it to `method`; 2.4 dropped the old name."""


def restore_standard_library() -> list[str]:
    """Restore names of collections and inspect. Return those that were missing."""
    restored = []
    for name in _COLLECTIONS:
        if not hasattr(collections, name) and name not in _NEVER_THERE:
            setattr(collections, name, getattr(collections.abc, name))
            restored.append(f"collections.{name}")
    if not hasattr(inspect, "getargspec"):
        vars(inspect)["getargspec"] = getargspec
        restored.append("inspect.getargspec")
    return restored


ArgSpec = collections.namedtuple("ArgSpec", "args varargs keywords defaults")


def getargspec(function: Any) -> ArgSpec:
    """Return the first four fields of inspect.getfullargspec, as Python 3.10 and earlier did."""
    full = inspect.getfullargspec(function)
    return ArgSpec(full.args, full.varargs, full.varkw, full.defaults)


def restore_numpy(numpy: ModuleType) -> None:
    """Restore the type aliases and the renamed functions. Names that NumPy still has stay."""
    for name, value in _NUMPY.items():
        if name not in vars(numpy):
            setattr(numpy, name, value)
    for name, new in _NUMPY_RENAMED.items():
        if name not in vars(numpy) and hasattr(numpy, new):
            setattr(numpy, name, getattr(numpy, new))
    for name in _NUMPY_INTERPOLATION:
        function = getattr(numpy, name)
        if "interpolation" not in inspect.signature(function).parameters:
            setattr(numpy, name, _with_interpolation(function))


def _with_interpolation(function: Any) -> Any:
    @functools.wraps(function)
    def converted(*args: Any, interpolation: str | None = None, **kwargs: Any) -> Any:
        if interpolation is not None:
            kwargs["method"] = interpolation
        return function(*args, **kwargs)

    return converted


def restore_scipy(sparse: ModuleType) -> None:
    """Restore `.A` of sparse matrices, which SciPy 1.14 dropped."""
    for name in ("spmatrix", "sparray"):
        kind = getattr(sparse, name, None)
        if kind is not None and not hasattr(kind, "A"):
            kind.A = property(lambda matrix: matrix.toarray(), doc="The matrix as an array.")


def restore_nltk(util: ModuleType) -> None:
    """Let ngrams take a NumPy integer as its length. NLTK 3.9 does not."""
    original = util.ngrams

    @functools.wraps(original)
    def ngrams(sequence: Any, n: Any, **kwargs: Any) -> Any:
        return original(sequence, int(n), **kwargs)

    vars(util)["ngrams"] = ngrams


def restore_json_format(json_format: ModuleType) -> None:
    """Let MessageToJson and MessageToDict take including_default_value_fields, which protobuf 5.26 dropped."""
    for name in ("MessageToJson", "MessageToDict"):
        function = getattr(json_format, name)
        if "including_default_value_fields" not in inspect.signature(function).parameters:
            setattr(json_format, name, _with_old_keyword(function))


def _with_old_keyword(function: Any) -> Any:
    @functools.wraps(function)
    def converted(message: Any, including_default_value_fields: bool = False, *args: Any, **kwargs: Any) -> Any:
        if including_default_value_fields:
            kwargs["always_print_fields_with_no_presence"] = True
        return function(message, *args, **kwargs)

    return converted
