"""Reads the nested state in files of the published writers; makes the attributes with which their `load` nests ours.

Both versions store leaves under flat names, and describe the containers separately as a tree of torch.utils._pytree:

| version | the tree: root attribute `__spec__` | leaves that are not datasets |
|---|---|---|
| 0.5 (2.5 to 2.10) | JSON `[example, text]`; the text is JSON `[1, node]` | JSON, attribute `<name>.__metadata__` |
| up to 0.4 (1.9 to 2.4) | a pickle, in hex | attributes of an empty dataset |

A structure is [kind, content]. The kinds "d" (dict) and "od" (OrderedDict) have a list of [key, structure] pairs; "l"
(list), "t" (tuple), "set" and "deque" have a list of structures; "leaf" has a flat name; "skip" has a text that names a
container we leave out.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from typing import Any, Protocol

from cerebras_tensorflow.errors import CorruptCheckpointError
from cerebras_tensorflow.saver.hdf5 import plain_object
from cerebras_tensorflow.saver.hdf5.plain_object import Name, NotPlainError, Spec

logger = logging.getLogger(__name__)

Structure = list[Any]

SPEC_ATTRIBUTE = "__spec__"
VERSION_ATTRIBUTE = "__version__"
METADATA_SUFFIX = ".__metadata__"
STORAGE_VERSION = 0.5

_MAX_DEPTH = 200
_MAX_NODES = 1_000_000
_MAX_CHARACTERS = 1 << 27  # of all names of nodes together
_MAX_KEY_BITS = 64
_DICTS = {"builtins.dict": "d", "collections.OrderedDict": "od"}
_SEQUENCES = {
    "builtins.list": "l",
    "builtins.tuple": "t",
    "torch.Size": "t",
    "builtins.set": "set",
    "collections.deque": "deque",
}
_RTFX_TYPES = {
    **{"bool": 1, "int16": 3, "int32": 4, "int64": 5, "uint8": 6, "uint16": 7, "uint32": 8, "uint64": 9},
    **{"float16": 10, "float32": 11, "float64": 12, "bfloat16": 15},
}


class PublishedFile(Protocol):
    """The part of a file's reader that this module needs."""

    path: str

    def root_attribute(self, name: str) -> Any:
        """Return an attribute of the root group; None if the file lacks it."""

    def read(self, name: str) -> Any:
        """Return the value of a tensor."""

    def resolve(self, name: str) -> str:
        """Return the name under which a value is stored: another name if the value is a link."""

    def kind(self, name: str) -> str:
        """Return the writer's name for a value's type; empty if the file has none."""

    def metadata(self, name: str) -> dict[str, Any]:
        """Return the JSON metadata of a value of version 0.5; empty if it has none."""

    def object_bytes(self, name: str) -> bytes:
        """Return the pickle of an object."""


def structure_of(file: PublishedFile) -> Structure | None:
    """Return the structure of a file's state; None if the file has none, or only a pickled one that we cannot load.

    Raises:
        CorruptCheckpointError: If the description is damaged.
    """
    text = file.root_attribute(SPEC_ATTRIBUTE)
    if text is None:
        return None
    try:
        if float(file.root_attribute(VERSION_ATTRIBUTE) or 0) >= STORAGE_VERSION:
            spec: Spec | None = _from_json(json.loads(json.loads(text)[1])[1])
        else:
            spec = _pickled(file.path, bytes.fromhex(text))
        return None if spec is None else _structure(spec, (), _Budget())
    except (ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError) as exc:
        raise CorruptCheckpointError(
            f"{file.path}: the description of its nested state is damaged: {exc}. cs-checkpoint lists its tensors."
        ) from exc


def leaf_of(file: PublishedFile, name: str) -> tuple[str, Any]:
    """Return the kind of a leaf, which is "value", "array" (of NumPy) or "tensor" (of torch), and its value.

    Raises:
        NotPlainError: If it is a pickled object that we do not load. The text says why.
        KeyError: If there is no such leaf.
        CorruptCheckpointError: If it is damaged.
    """
    try:
        return _leaf(file, file.resolve(name))
    except NotPlainError:
        raise
    except (ValueError, TypeError, AttributeError, RecursionError) as exc:
        raise CorruptCheckpointError(
            f"{file.path}: the value {name!r} is damaged: {exc}. cs-checkpoint lists the file's tensors."
        ) from exc


def _leaf(file: PublishedFile, name: str) -> tuple[str, Any]:
    metadata, kind = file.metadata(name), file.kind(name)
    for key in ("scalar_value", "string_value"):
        if key in metadata:
            return "value", metadata[key]
    if kind.startswith("None"):
        return "value", None
    if kind.startswith("Object"):
        return "value", plain_object.load(file.object_bytes(name))
    value = file.read(name)
    if kind.startswith("Scalar"):
        return "value", value.item()
    if kind.startswith("String"):
        return "value", value.item().decode()
    # Files up to release 1.9 label torch tensors as NumPy arrays too.
    is_old = 0 < float(file.root_attribute(VERSION_ATTRIBUTE) or 0) <= 0.3
    return "tensor" if is_old or not kind.startswith("NumpyArray") else "array", value


def _pickled(path: str, data: bytes) -> Spec | None:
    try:
        return plain_object.load_spec(data)
    except NotPlainError as exc:
        logger.warning("%s: its nested state cannot be rebuilt (%s); the names of its values stay flat", path, exc)
        return None


def _from_json(node: Any) -> Spec:
    if node["type"] is None:
        return Spec()
    context = node["context"]
    module, _, name = node["type"].rpartition(".")
    if isinstance(context, dict):  # the context of a defaultdict
        factory = Name(context["default_factory_module"], context["default_factory_name"])
        context = [factory, context["dict_context"]]
    else:
        context = json.loads(context)
    return Spec(Name(module, name), context, [_from_json(child) for child in node["children_spec"]])


class _Budget:
    """What the rest of a tree may take. Nodes of a pickled tree can refer to each other endlessly often."""

    def __init__(self) -> None:
        self._nodes, self._characters = _MAX_NODES, _MAX_CHARACTERS

    def take(self, *names: str) -> None:
        """Take a node with these names.

        Raises:
            ValueError: If nothing is left.
        """
        self._nodes -= 1
        self._characters -= sum(map(len, names))
        if self._nodes < 0 or self._characters < 0:
            raise ValueError("a tree that no state has")


def _structure(spec: Any, scope: tuple[str, ...], budget: _Budget) -> Structure:
    if len(scope) > _MAX_DEPTH or not isinstance(spec, Spec):
        raise ValueError("a tree that no state has")
    if spec.type is None:
        budget.take(*scope)
        return ["leaf", ".".join(scope)]
    budget.take(spec.type.module, spec.type.name)
    kind = f"{spec.type.module}.{spec.type.name}"
    if kind in _SEQUENCES:
        return [_SEQUENCES[kind], [_structure(c, (*scope, str(i)), budget) for i, c in enumerate(spec.children)]]
    factory: Any = None
    if kind in _DICTS:
        keys = spec.context
    elif kind == "collections.defaultdict":
        factory, keys = spec.context
    else:
        budget.take(*scope)
        return ["skip", f"{'.'.join(scope)}: a container of type {kind[:80]}"]
    # Check the keys before any is printed: their parts can refer to each other endlessly often.
    if not isinstance(keys, list | tuple) or len(keys) != len(spec.children) or not all(map(_is_key, keys)):
        raise ValueError("a dict whose keys do not fit")
    names = [str(key) for key in keys]
    if len(set(names)) != len(names):
        raise ValueError("a dict with a key twice")
    if factory is not None:
        # The published writers take the two parts of this context for the names of the children.
        names = [f"<class '{factory.name}'>" if factory.module in ("builtins", "__builtin__") else "", str(keys)]
        names += [""] * (len(keys) - 2)
        kind = "builtins.dict"
    budget.take(*names)
    children = zip(keys, names, spec.children, strict=False)
    return [_DICTS[kind], [[key, _structure(child, (*scope, name), budget)] for key, name, child in children]]


def _is_key(key: Any) -> bool:
    return isinstance(key, str) or (isinstance(key, int) and key.bit_length() <= _MAX_KEY_BITS)


def attributes_of(structure: Structure, leaves: dict[str, dict[str, Any]]) -> dict[str, str | bool | float]:
    """Return the root attributes from which the published `load` (0.5) rebuilds the structure of one of our files.

    Args:
        structure: The structure, with only the kinds "d", "od", "l", "t" and "leaf".
        leaves: Flat name -> what `describe` returns for the leaf.
    """
    attributes: dict[str, str | bool | float] = {VERSION_ATTRIBUTE: STORAGE_VERSION, "__SUCCESS__": True}
    attributes[SPEC_ATTRIBUTE] = _spec_text(_to_json(structure))
    for name, metadata in leaves.items():
        key = name + METADATA_SUFFIX
        own = _to_json(["d", [[name, ["leaf", name]]]])
        content = {"__spec__": json.loads(_spec_text(own)), "__objects__": [name], key: metadata}
        attributes[key] = json.dumps(content)
    return attributes


def describe(value: Any, torch_dtype: str | None = None, shape: Sequence[int] = ()) -> dict[str, Any]:
    """Return the JSON metadata of a leaf: a number, text, None, torch tensor or NumPy array.

    Args:
        value: The leaf's value.
        torch_dtype: Element type if the leaf is a torch tensor.
        shape: Shape if the leaf is a torch tensor.
    """
    if value is None:
        return {"__TYPE__": "NoneSerializer", "__NONE__": True}
    if type(value) is str:
        return {"string_value": value, "__TYPE__": "StringSerializer", "__NONE__": True}
    if type(value) in (bool, int, float):
        return {"scalar_value": value, "__TYPE__": "ScalarSerializer", "__NONE__": True}
    if torch_dtype in _RTFX_TYPES:
        types = {"dtypes": [f"torch.{torch_dtype}"], "rtfx_dtypes": [_RTFX_TYPES[torch_dtype]]}
        kind = {"__TORCH__": True, "shapes": [list(shape)], **types, "__TYPE__": "TorchTensorSerializer"}
    else:
        kind = {"is_bfloat16": str(getattr(value, "dtype", "")) == "bfloat16", "__TYPE__": "NumpyArraySerializer"}
    return {**kind, "__NUMPY__": True, "compressed": False}


def _spec_text(node: dict[str, Any]) -> str:
    return json.dumps([None, json.dumps([1, node])])


def _to_json(structure: Structure) -> dict[str, Any]:
    kind, content = structure
    if kind in ("d", "od"):
        type_name = next(name for name, short in _DICTS.items() if short == kind)
        children = [_to_json(child) for _, child in content]
        return {"type": type_name, "context": json.dumps([key for key, _ in content]), "children_spec": children}
    if kind in ("l", "t"):
        type_name = next(name for name, short in _SEQUENCES.items() if short == kind)
        return {"type": type_name, "context": "null", "children_spec": [_to_json(child) for child in content]}
    return {"type": None, "context": None, "children_spec": []}
