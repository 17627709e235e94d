"""Flattened PyTorch state dicts in HDF5: `{"a": {"b": 0.1}, "d": [1]}` as tensors "a.b" and "d.0".

A state may nest dicts, lists, tuples, numbers, strings, None, arrays and, with torch, torch tensors. The string tensor
`__structure__` holds the structure as JSON; no pickle is written or read.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from typing import Any

import ml_dtypes
import numpy as np

from cerebras_tensorflow.errors import CheckpointError
from cerebras_tensorflow.saver import convert
from cerebras_tensorflow.saver.checkpoint_reader import open_checkpoint
from cerebras_tensorflow.saver.interface import TensorReader
from cerebras_tensorflow.saver.safetensors_file import SafetensorsWriter
from cerebras_tensorflow.saver.tf_h5_saver import Sharding, writer

STRUCTURE = "__structure__"

_SCALARS = (bool, int, float, str)


def save(state: Any, path: str | os.PathLike[str], sharding: Sharding | None = None, compression: str = "none") -> None:
    """Save a nested state.

    Args:
        state: Dicts with str or int keys, lists, tuples, numbers, strings, None, arrays, torch tensors.
        path: The HDF5 file.
        sharding: As tf_h5_saver.save.
        compression: none, lz4 or gzip.

    Raises:
        ValueError: If two values would get the same flat name ("a.b" beside {"a": {"b": ...}}).
        TypeError: If a value is of another type; the text names it.
        CheckpointError: If the file cannot be written.
    """
    leaves: dict[str, Any] = {}
    structure = _flatten(state, "", leaves)
    with writer(path, sharding, compression) as target:
        for name, value in leaves.items():
            target.add(name, _to_numpy(value))
        target.add(STRUCTURE, json.dumps(structure))


def load(path: str | os.PathLike[str], as_torch: bool | None = None) -> Any:
    """Return the state of a file.

    Args:
        path: A file from `save`. Any other checkpoint gives a flat dict of arrays.
        as_torch: Whether to return torch tensors. By default those that were torch tensors when saved, if torch is
            installed.

    Raises:
        CheckpointError: If the file cannot be read, or `as_torch` needs torch and it is missing.
    """
    with open_checkpoint(path) as reader:
        if STRUCTURE not in reader:
            values = {name: reader.read(name) for name in reader.names()}
            return {name: _as_torch(value) for name, value in values.items()} if as_torch else values
        return _unflatten(json.loads(_text(reader.read(STRUCTURE))), reader, as_torch)


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
    torch.save(load(path, as_torch=True), os.fspath(target))


def _flatten(value: Any, name: str, leaves: dict[str, Any]) -> Any:
    """Return the structure of a value, and add its leaves to `leaves` by flat name.

    A structure is [kind, content]. The kind "d" (dict) has a list of [key, structure] pairs; "l" (list) and "t" (tuple)
    have a list of structures; "v" has the value itself, None or a large integer. The others have the flat name of a
    leaf: "a" array, "x" torch tensor, "bool", "int", "float", "str".
    """
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str | int) or isinstance(key, bool):
                raise TypeError(f"key {key!r} under {name!r} is {type(key).__name__}; expected str or int")
        return ["d", [[key, _flatten(child, _join(name, key), leaves)] for key, child in value.items()]]
    if isinstance(value, list | tuple):
        children = [_flatten(child, _join(name, index), leaves) for index, child in enumerate(value)]
        return ["l" if isinstance(value, list) else "t", children]
    if value is None or (type(value) is int and not -(2**63) <= value < 2**63):
        return ["v", value]
    scalar = type(value).__name__ if type(value) in _SCALARS else None
    is_torch = _is_torch_tensor(value)
    if scalar is None and not is_torch and not isinstance(value, np.ndarray | np.generic):
        raise TypeError(f"{name!r} is {type(value).__name__}; expected dict, list, tuple, number, str, None or array")
    if name in leaves or name in ("", STRUCTURE):
        raise ValueError(f"the flat name {name!r} is taken; rename one of the keys")
    leaves[name] = value
    return [scalar or ("x" if is_torch else "a"), name]


def _unflatten(structure: Any, reader: TensorReader, as_torch: bool | None) -> Any:
    kind, content = structure
    if kind == "d":
        return {key: _unflatten(child, reader, as_torch) for key, child in content}
    if kind in "lt":
        children = [_unflatten(child, reader, as_torch) for child in content]
        return children if kind == "l" else tuple(children)
    if kind == "v":
        return content
    value = reader.read(content)
    if kind == "str":
        return _text(value)
    if kind in ("bool", "int", "float"):
        return value.item()
    if as_torch or (as_torch is None and kind == "x" and _has_torch()):
        return _as_torch(value)
    return value


def _text(value: np.ndarray[Any, Any]) -> str:
    return bytes(value.item()).decode()


def _join(name: str, key: str | int) -> str:
    return f"{name}.{key}" if name else str(key)


def _is_torch_tensor(value: Any) -> bool:
    # Do not import torch here: if the value is a torch tensor, the caller has imported it.
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def _to_numpy(value: Any) -> np.ndarray[Any, Any]:
    if not _is_torch_tensor(value):
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
    return torch.from_numpy(value)


def _has_torch() -> bool:
    from importlib.util import find_spec

    return find_spec("torch") is not None


def _torch() -> Any:
    try:
        import torch
    except ImportError as exc:
        raise CheckpointError("torch tensors need the package torch: pip install torch") from exc
    return torch
