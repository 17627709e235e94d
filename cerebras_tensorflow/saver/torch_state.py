"""Flattened PyTorch state dicts in HDF5: `{"a": {"b": 0.1}, "d": [1]}` as tensors "a.b" and "d.0".

A state may nest dicts, lists, tuples, numbers, strings, None, element types, arrays and, with torch, torch tensors. The
string tensor `__structure__` holds the structure as JSON, and root attributes hold it for the published readers
(`hdf5/published_state.py`). We write no pickle, and run none.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import ml_dtypes
import numpy as np

from cerebras_tensorflow.errors import CheckpointError, CorruptCheckpointError
from cerebras_tensorflow.locations import local_path
from cerebras_tensorflow.saver import convert
from cerebras_tensorflow.saver.checkpoint_reader import open_checkpoint
from cerebras_tensorflow.saver.hdf5.foreign import ForeignH5Reader
from cerebras_tensorflow.saver.hdf5.format import dtype_named, quote
from cerebras_tensorflow.saver.hdf5.plain_object import NotPlainError, TorchType
from cerebras_tensorflow.saver.hdf5.published_state import (
    attributes_of,
    describe,
    leaf_of,
    structure_of,
)
from cerebras_tensorflow.saver.hdf5.writer import H5Writer
from cerebras_tensorflow.saver.interface import TensorReader
from cerebras_tensorflow.saver.safetensors_file import SafetensorsWriter
from cerebras_tensorflow.saver.tf_h5_saver import Sharding, writer

logger = logging.getLogger(__name__)

STRUCTURE = "__structure__"

_SCALARS = (bool, int, float, complex, str)
_SKIPPED = object()  # in place of a value that is not loaded


def save(state: Any, path: str | os.PathLike[str], sharding: Sharding | None = None, compression: str = "none") -> None:
    """Save a nested state.

    The published `cerebras.pytorch.load` (2.5 to 2.10) returns the same nested state if it is in one file, and all keys
    have only ASCII letters, digits and `_.-~`. It returns element types as their names, and NumPy scalars as arrays.

    Args:
        state: Dicts with str or int keys, lists, tuples, numbers, strings, None, arrays, torch tensors, element types.
        path: The HDF5 file.
        sharding: As tf_h5_saver.save.
        compression: none, lz4 or gzip.

    Raises:
        ValueError: If two values would get the same flat name ("a.b" beside {"a": {"b": ...}}), or an element type is
            not numeric.
        TypeError: If a value is of another type; the text names it.
        CheckpointError: If the file cannot be written.
    """
    leaves: dict[str, Any] = {}
    structure = _flatten(state, "", leaves)
    # A small state's file stays as HDF5 1.6 reads it.
    with writer(path, sharding, compression, has_many_attributes=len(leaves) > 100) as target:
        for name, value in leaves.items():
            if _is_stored(value):
                target.add(name, _to_numpy(value))
        target.add(STRUCTURE, json.dumps(structure))
        # The published reader does not unquote the names of datasets, so it cannot find quoted ones.
        if isinstance(target, H5Writer) and all(quote(name) == name for name in leaves):
            target.annotate(_published_attributes(structure, leaves))


def load(path: str | os.PathLike[str], as_torch: bool | None = None) -> Any:
    """Return the state of a file.

    Args:
        path: A file from `save` or from the published PyTorch writers (1.9 to 2.10) gives the nested state. Any other
            checkpoint gives a flat dict of arrays. Pickled objects other than plain values are never loaded: dicts lack
            them, lists have None in their place, and a warning names each.
        as_torch: Whether to return all arrays as torch tensors. None: only those that were torch tensors when saved, if
            torch is installed.

    Raises:
        CheckpointError: If the file cannot be read, or `as_torch` needs torch and it is missing.
        CorruptCheckpointError: If its structure or a value is damaged.
    """
    with open_checkpoint(path) as reader:
        if STRUCTURE in reader:
            return _own_state(reader, as_torch)
        if isinstance(reader, ForeignH5Reader) and (structure := structure_of(reader)) is not None:
            return _unflatten(structure, lambda kind, content: _published_leaf(kind, content, reader, as_torch))
        values = {name: reader.read(name) for name in reader.names()}
        return {name: _as_torch(value) for name, value in values.items()} if as_torch else values


def to_safetensors(path: str | os.PathLike[str], target: str | os.PathLike[str]) -> convert.Report:
    """Convert a checkpoint of any kind to safetensors, in bounded memory; strings are skipped.

    Raises:
        ValueError: If safetensors cannot hold one of the types.
        CheckpointError: As reader and writer.
    """
    with open_checkpoint(path) as reader:
        strings = tuple(name for name in reader.names() if reader.entry(name).dtype.kind == "O")
        names = [name for name in reader.names() if name not in strings]
        with SafetensorsWriter(target, {name: reader.entry(name) for name in names}) as output:
            for name in names:
                entry = reader.entry(name)
                output.add_chunks(name, entry.dtype, entry.shape, reader.chunks(name))
        num_bytes = sum(reader.entry(name).num_bytes for name in names)
        skipped = dict.fromkeys(strings, "a string, which safetensors cannot hold")
        return convert.Report(len(names), num_bytes, skipped | dict(getattr(reader, "skipped", {})))


def from_safetensors(path: str | os.PathLike[str], target: str | os.PathLike[str]) -> convert.Report:
    """Convert a safetensors file to HDF5, in bounded memory."""
    with open_checkpoint(path) as reader, writer(target) as output:
        return convert.copy(reader, output)


def to_torch_pickle(path: str | os.PathLike[str], target: str | os.PathLike[str]) -> None:
    """Write a state with torch.save. Loading such a pickle runs code, and writing it needs all values in memory.

    Use it only for programs that read nothing else; `to_safetensors` has neither drawback.

    Raises:
        CheckpointError: If torch is missing.
    """
    torch = _torch()
    torch.save(load(path, as_torch=True), local_path(target))


def _flatten(value: Any, name: str, leaves: dict[str, Any]) -> Any:
    """Return the structure of a value, and add its leaves to `leaves` by flat name.

    A structure is [kind, content]. The kinds "d" (dict) and "od" (OrderedDict) have a list of [key, structure] pairs;
    "l" (list) and "t" (tuple) have a list of structures; "v" has the value itself, None or a large integer; "dtype" has
    the name of an element type. The others have the flat name of a leaf: "a" array, "x" torch tensor, "n" NumPy scalar,
    "bool", "int", "float", "complex", "str".
    """
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str | int) or isinstance(key, bool):
                raise TypeError(f"key {key!r} under {name!r} is {type(key).__name__}; expected str or int")
        kind = "od" if isinstance(value, OrderedDict) else "d"
        return [kind, [[key, _flatten(child, _join(name, key), leaves)] for key, child in value.items()]]
    if isinstance(value, list | tuple):
        children = [_flatten(child, _join(name, index), leaves) for index, child in enumerate(value)]
        return ["l" if isinstance(value, list) else "t", children]
    if name in leaves or name in ("", STRUCTURE):
        raise ValueError(f"the flat name {name!r} is taken; rename one of the keys")
    if _is_torch(value, "dtype") or isinstance(value, np.dtype):
        leaves[name] = value.name if isinstance(value, np.dtype) else str(value)
        _dtype_named(leaves[name])
        return ["dtype", leaves[name]]
    leaves[name] = value
    if not _is_stored(value):
        return ["v", value]
    if type(value) in _SCALARS:
        return [type(value).__name__, name]
    for kind, is_kind in (("x", _is_torch(value, "Tensor")), ("n", isinstance(value, np.generic))):
        if is_kind:
            return [kind, name]
    if not isinstance(value, np.ndarray):
        raise TypeError(f"{name!r} is {type(value).__name__}; expected dict, list, tuple, number, str, None or array")
    return ["a", name]


def _is_stored(value: Any) -> bool:
    """Whether a leaf is stored as a tensor; None and large integers are in the structure."""
    return value is not None and not (type(value) is int and not -(2**63) <= value < 2**63)


def _unflatten(structure: Any, leaf: Callable[[str, Any], Any]) -> Any:
    kind, content = structure
    if kind in ("d", "od"):
        pairs = ((key, _unflatten(child, leaf)) for key, child in content)
        return (dict if kind == "d" else OrderedDict)((key, value) for key, value in pairs if value is not _SKIPPED)
    if kind in _CONTAINERS:
        values = (_unflatten(child, leaf) for child in content)
        return _CONTAINERS[kind](None if value is _SKIPPED else value for value in values)
    return leaf(kind, content)


def _own_state(reader: TensorReader, as_torch: bool | None) -> Any:
    try:
        structure = json.loads(_text(reader.read(STRUCTURE)))
        return _unflatten(structure, lambda kind, content: _leaf(kind, content, reader, as_torch))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as exc:
        raise CorruptCheckpointError(f"{reader.path}: {STRUCTURE!r} does not describe its tensors: {exc}") from exc


def _set(values: Iterable[Any]) -> Any:
    """Return a set; a list if a value has no hash: what was a torch tensor may be an array here."""
    members = list(values)
    try:
        return set(members)
    except TypeError:
        logger.warning("a set of arrays is loaded as a list")
        return members


_CONTAINERS: dict[str, Callable[..., Any]] = {"l": list, "t": tuple, "set": _set, "deque": deque}


def _leaf(kind: str, content: Any, reader: TensorReader, as_torch: bool | None) -> Any:
    """Return a leaf of one of our files."""
    if kind == "v":
        return content
    if kind == "dtype":
        return _dtype_named(content)
    value = reader.read(content)
    if kind == "str":
        return _text(value)
    if kind in ("bool", "int", "float", "complex"):
        return value.item()
    if kind == "n":
        return value[()]
    return _array(value, kind == "x", as_torch)


def _published_leaf(kind: str, content: str, reader: ForeignH5Reader, as_torch: bool | None) -> Any:
    """Return a leaf of a file of the published writers; `_SKIPPED`, with a warning, if it is not a plain value."""
    if kind == "leaf":
        try:
            kind, value = leaf_of(reader, content)
            if isinstance(value, TorchType):
                return _dtype_named(f"torch.{value.name}")
            return value if kind == "value" else _array(value, kind == "tensor", as_torch)
        except (NotPlainError, KeyError) as exc:
            content = f"{content}: {exc.args[0]}"
    logger.warning("%s: skipped %s", reader.path, content)
    return _SKIPPED


def _array(value: np.ndarray[Any, Any], was_torch: bool, as_torch: bool | None) -> Any:
    if as_torch or (as_torch is None and was_torch and _has_torch()):
        return _as_torch(value)
    return value


def _published_attributes(structure: Any, leaves: Mapping[str, Any]) -> dict[str, str | bool | float]:
    described: dict[str, dict[str, Any]] = {}
    for name, value in leaves.items():
        is_torch = _is_torch(value, "Tensor")
        dtype, shape = (str(value.dtype).removeprefix("torch."), value.shape) if is_torch else (None, ())
        described[name] = describe(value, dtype, shape)
    return attributes_of(structure, described)


def _text(value: np.ndarray[Any, Any]) -> str:
    return bytes(value.item()).decode()


def _join(name: str, key: str | int) -> str:
    return f"{name}.{key}" if name else str(key)


def _is_torch(value: Any, kind: str) -> bool:
    """Whether a value is an instance of a class of torch."""
    # Do not import torch here: if the value is from torch, the caller has imported it.
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, getattr(torch, kind))


def _dtype_named(name: str) -> Any:
    """Return an element type; without torch, NumPy's type of the same name."""
    plain = name.removeprefix("torch.")
    return getattr(_torch(), plain) if plain != name and _has_torch() else dtype_named(plain)


def _to_numpy(value: Any) -> np.ndarray[Any, Any]:
    if not _is_torch(value, "Tensor"):
        return np.asarray(value)
    torch = sys.modules["torch"]
    value = value.detach().cpu().contiguous()
    if value.dtype == torch.bfloat16:
        return np.asarray(value.view(torch.int16).numpy().view(ml_dtypes.bfloat16))
    return np.asarray(value.numpy())


def _as_torch(value: np.ndarray[Any, Any]) -> Any:
    torch = _torch()
    if value.dtype == ml_dtypes.bfloat16:
        return torch.from_numpy(value.view(np.int16)).view(torch.bfloat16)
    if value.dtype.kind == "O":
        return value
    try:
        return torch.from_numpy(value)
    except TypeError as exc:
        raise CheckpointError(f"torch has no tensors of {value.dtype}; load the state with as_torch=False") from exc


def _has_torch() -> bool:
    from importlib.util import find_spec

    return find_spec("torch") is not None


def _torch() -> Any:
    try:
        import torch
    except ImportError as exc:
        raise CheckpointError("torch tensors need the package torch: pip install torch") from exc
    return torch
