"""Reads plain Python values from a pickle (numbers, text, containers, NumPy scalars, types) without running its code.

The published writers pickle values that HDF5 has no type for. Older releases also pickle the structure of a state. We
keep the names of functions and classes as names. For the calls in `_CALLS`, functions of this module run instead; any
other call is refused.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from cerebras_tensorflow.saver.bounded_unpickler import BoundedUnpickler

# Limits the time: each byte of a pickle takes about a microsecond.
_MAX_BYTES = 16 << 20
_MAX_VALUES = 1_000_000
_MAX_DEPTH = 200
_OPCODES = (
    *(pickle.PROTO, pickle.FRAME, pickle.STOP, pickle.MARK),
    *(pickle.NONE, pickle.NEWTRUE, pickle.NEWFALSE, pickle.INT, pickle.BININT, pickle.BININT1, pickle.BININT2),
    *(pickle.LONG1, pickle.LONG4, pickle.FLOAT, pickle.BINFLOAT),
    *(pickle.UNICODE, pickle.BINUNICODE, pickle.SHORT_BINUNICODE, pickle.BINUNICODE8),
    *(pickle.BINBYTES, pickle.SHORT_BINBYTES, pickle.BINBYTES8),
    *(pickle.EMPTY_DICT, pickle.EMPTY_LIST, pickle.EMPTY_TUPLE, pickle.DICT, pickle.LIST, pickle.TUPLE),
    *(pickle.TUPLE1, pickle.TUPLE2, pickle.TUPLE3, pickle.APPEND, pickle.APPENDS, pickle.SETITEM, pickle.SETITEMS),
    *(pickle.PUT, pickle.BINPUT, pickle.LONG_BINPUT, pickle.MEMOIZE, pickle.GET, pickle.BINGET, pickle.LONG_BINGET),
    *(pickle.GLOBAL, pickle.STACK_GLOBAL, pickle.REDUCE, pickle.NEWOBJ, pickle.BUILD, pickle.FROZENSET),
)
_BUILTINS = ("builtins", "__builtin__")
_INTEGERS = tuple(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64))
_NUMPY_TYPES = frozenset(["float16", "float32", "float64", "complex64", "complex128", "bool", "bool_", *_INTEGERS])
_TORCH_TYPES = _NUMPY_TYPES - {"bool_"} | {"bfloat16"}


class NotPlainError(ValueError):
    """A pickle that is damaged, or has other than plain values. The text says what is wrong."""


@dataclass(frozen=True)
class Name:
    """A function or class as the pickle names it. It cannot be called."""

    module: str
    name: str


@dataclass(frozen=True)
class TorchType:
    """A torch.dtype."""

    name: str


@dataclass
class Spec:
    """A node of torch's description of a nested state (torch.utils._pytree.TreeSpec).

    Attributes:
        type: The container's class; None for a leaf.
        context: What the class needs besides the children, such as the keys of a dict.
        children: The nodes of the elements.
    """

    type: Any = None
    context: Any = None
    children: Any = ()


def load(data: bytes) -> Any:
    """Return the value of a pickle.

    Raises:
        NotPlainError: If it is not a plain value, or damaged.
    """
    return _plain(_unpickled(data), [_MAX_VALUES])


def load_spec(data: bytes) -> Spec:
    """Return the tree in a pickle of a TreeSpec.

    Raises:
        NotPlainError: If it is anything else, or damaged.
    """
    spec = _unpickled(data)
    if not isinstance(spec, Spec):
        raise NotPlainError(f"a {type(spec).__name__}; expected a TreeSpec")
    return spec


def _unpickled(data: bytes) -> Any:
    if len(data) > _MAX_BYTES:
        raise NotPlainError(f"a pickle of {len(data)} bytes; at most {_MAX_BYTES} are read")
    try:
        return _Unpickler(io.BytesIO(data)).load()
    except NotPlainError:
        raise
    except pickle.UnpicklingError as exc:
        raise NotPlainError(str(exc)) from exc
    except KeyError as exc:
        raise NotPlainError(f"damaged, or not made of plain values (opcode or memo {exc})") from exc
    # A damaged pickle can fail at any opcode, in any way.
    except Exception as exc:
        raise NotPlainError(f"damaged: {type(exc).__name__}: {str(exc)[:80]}") from exc


class _Unpickler(BoundedUnpickler):
    dispatch: ClassVar[dict[int, Any]] = {code[0]: BoundedUnpickler.dispatch[code[0]] for code in _OPCODES}

    def find_class(self, module: str, name: str) -> Name:
        return Name(module, name)

    def load_reduce(self) -> None:
        arguments, function = self.stack.pop(), self.stack[-1]
        call = _CALLS.get(function) if isinstance(function, Name) else None
        if call is None or not isinstance(arguments, tuple):
            raise NotPlainError(_not_run(function))
        self.stack[-1] = call(*arguments)

    dispatch[pickle.REDUCE[0]] = load_reduce

    def load_newobj(self) -> None:
        arguments, made = self.stack.pop(), self.stack.pop()
        is_spec = isinstance(made, Name) and made.module.startswith("torch.utils.")
        if not is_spec or made.name not in ("TreeSpec", "LeafSpec") or arguments:
            raise NotPlainError(_not_run(made))
        self.append(Spec())

    dispatch[pickle.NEWOBJ[0]] = load_newobj

    def load_build(self) -> None:
        state, made = self.stack.pop(), self.stack[-1]
        if isinstance(made, np.dtype):
            self.stack[-1] = made.newbyteorder(">" if state[1] == ">" else "=")
        elif isinstance(made, Spec):
            _fill(made, state)
        else:
            raise NotPlainError(f"it sets attributes of a {type(made).__name__}")

    dispatch[pickle.BUILD[0]] = load_build


def _fill(spec: Spec, state: Any) -> None:
    """Set a Spec's fields: torch up to 2.8 pickles a dict of attributes (also in a pair), newer ones a list."""
    if isinstance(state, tuple) and len(state) == 2:
        state = state[0] or state[1]
    if isinstance(state, dict):
        state = [state.get("type"), state.get("context"), state.get("children_specs", state.get("_children", ()))]
    spec.type, spec.context, spec.children = state[:3]


def _plain(value: Any, left: list[int], depth: int = 0) -> Any:
    """Return a value with the types that it names, after a check that it has no other names."""
    left[0] -= 1
    if depth > _MAX_DEPTH:
        raise NotPlainError(f"values nested deeper than {_MAX_DEPTH}")
    if left[0] < 0:
        raise NotPlainError(f"more than {_MAX_VALUES} values")
    if isinstance(value, dict):
        return {key: _plain(child, left, depth + 1) for key, child in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_plain(child, left, depth + 1) for child in value)
    if isinstance(value, Name):
        return _type(value)
    if isinstance(value, Spec):
        raise NotPlainError("a TreeSpec")
    return value


def _type(name: Name) -> Any:
    if name.module == "torch" and name.name in _TORCH_TYPES:
        return TorchType(name.name)
    if name.module in _BUILTINS and name.name in ("bool", "int", "float", "complex", "str"):
        return {"bool": bool, "int": int, "float": float, "complex": complex, "str": str}[name.name]
    if name.module == "numpy" and name.name in _NUMPY_TYPES:
        return np.bool_ if name.name == "bool" else getattr(np, name.name)
    raise NotPlainError(f"it names {name.module[:80]}.{name.name[:80]}")


def _not_run(function: Any) -> str:
    if isinstance(function, Name):
        return f"it calls {function.module[:80]}.{function.name[:80]}, which is not run"
    return f"it calls a {type(function).__name__}"


def _complex(real: Any, imaginary: Any) -> complex:
    if type(real) is not float or type(imaginary) is not float:
        raise NotPlainError("a complex number without two floats")
    return complex(real, imaginary)


def _dtype(code: Any, *_: Any) -> np.dtype[Any]:
    if not isinstance(code, str):
        # Do not print the value: its parts can refer to each other so often that printing takes endless time.
        raise NotPlainError(f"a NumPy type whose name is a {type(code).__name__}")
    if len(code) > 4 or code[:1] not in "biufc":
        raise NotPlainError(f"a NumPy type {code[:40]!r}")
    return np.dtype(code)


def _scalar(dtype: Any, data: Any) -> Any:
    if not isinstance(dtype, np.dtype) or not isinstance(data, bytes) or len(data) != dtype.itemsize:
        raise NotPlainError("a NumPy scalar whose bytes do not fit its type")
    return np.frombuffer(data, dtype)[0]


def _load_type(name: Any) -> Name:
    if not isinstance(name, str):
        raise NotPlainError("a type without a name")
    return Name("builtins", name)


_CALLS: dict[Name, Callable[..., Any]] = {
    **{Name(module, "complex"): _complex for module in _BUILTINS},
    **{Name(module, "scalar"): _scalar for module in ("numpy.core.multiarray", "numpy._core.multiarray")},
    **{Name(module, "_load_type"): _load_type for module in ("dill._dill", "dill.dill", "dill")},
    Name("numpy", "dtype"): _dtype,
}
