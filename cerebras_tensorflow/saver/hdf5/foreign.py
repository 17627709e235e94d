"""Reading HDF5 checkpoints of other writers: every published generation and plain h5py files.

| generation | recognized by | names | values |
|---|---|---|---|
| current storage (0.5) | root `__version__` >= 0.5 | unquoted, in groups | datasets; small ones JSON on the root |
| H5Saver, 1.9 to 2.4 | `__H5_TYPE__` on each dataset | URL-quoted | datasets, strings as attributes |
| 1.7 and 1.8 | `is_none`, `is_string`, ... | URL-quoted | datasets, strings as attributes |
| plain h5py | none of these | unquoted, in groups | datasets |

Pickled objects are never loaded; `skipped` names them. Links to other files and storage in them are refused.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from typing import Any

import h5py
import numpy as np

from cerebras_tensorflow.errors import CheckpointError, CorruptCheckpointError
from cerebras_tensorflow.saver.bundle import string_tensor
from cerebras_tensorflow.saver.hdf5 import blocks as h5_blocks
from cerebras_tensorflow.saver.hdf5 import format as h5_format
from cerebras_tensorflow.saver.hdf5.chunk_cache import open_dataset
from cerebras_tensorflow.saver.hdf5.index import most_bytes
from cerebras_tensorflow.saver.hdf5.published_state import METADATA_SUFFIX, STORAGE_VERSION
from cerebras_tensorflow.saver.hdf5.values import FileFacts, Item, item_of, kind_of, small, text_of
from cerebras_tensorflow.saver.interface import (
    BytesLike,
    TensorEntry,
    TensorReader,
    as_bytes,
    flat_view,
    holds_strings,
    missing_tensor,
    no_rows,
    wrong_buffer,
)

_MAX_DEPTH = 64
# Least size of a link and its object in a file [B]. A group with several links to it is visited once for each link.
_LINK_BYTES = 64
_ALWAYS_ALLOWED_VISITS, _MAX_VISITS = 10_000, 2_000_000


class ForeignH5Reader(TensorReader):
    """The tensors of an HDF5 file without our index. Its only checksums are those of HDF5's own filters.

    The class has more than 20 methods: half implement TensorReader, and the others handle each generation of files.

    Args:
        path: The file.
        accept_unindexed: Also read one of our files that has lost its index: it was cut short, or another program
            changed it.

    Raises:
        CheckpointError: If it uses another file, or two tensors have the same name.
        CorruptCheckpointError: If HDF5 cannot read it, or our index is lost.

    Attributes:
        skipped: Objects that are not tensors, by name, with the reason: pickled objects, None, compound types.
        generation: The file's generation, from the table above.
    """

    def __init__(self, path: str | os.PathLike[str], accept_unindexed: bool = False) -> None:
        self.path = os.fspath(path)
        self.skipped: dict[str, str] = {}
        self._items: dict[str, Item] = {}
        self._kinds: dict[str, str] = {}
        self._metadata: dict[str, dict[str, Any]] = {}
        self._links: dict[str, str] = {}
        self._visits = 0
        self._declared_bytes = 0
        _load_filters()
        try:
            self._size = os.stat(self.path).st_size
            self._file = h5py.File(self.path, "r")
        except OSError as exc:
            raise CorruptCheckpointError(
                f"{self.path}: HDF5 cannot open it: {_one_line(exc)}. It is truncated, damaged or not a checkpoint."
            ) from exc
        try:
            if h5_format.INDEX_ATTRIBUTE in self._file.attrs and not accept_unindexed:
                raise CorruptCheckpointError(
                    f"{self.path}: the index at its end is lost: it was cut short, or changed by another program. Use "
                    "another checkpoint, or convert it without checksums: --accept-changed."
                )
            version = _version(self._file)
            self._walk(self._file, "", set(), 0)
            if version is not None and version >= STORAGE_VERSION:
                self.generation = f"cerebras storage {version:g}"
                self._add_json_values()
            else:
                self.generation = _generation_of(self._file, version)
        except BaseException as exc:
            self._file.close()
            if isinstance(exc, OSError | RuntimeError | ValueError | TypeError | KeyError):
                raise CorruptCheckpointError(
                    f"{self.path}: damaged: {_one_line(exc)}. Use another checkpoint."
                ) from exc
            raise

    def names(self) -> list[str]:
        return sorted(self._items)

    def __contains__(self, name: object) -> bool:
        return name in self._items

    def entry(self, name: str) -> TensorEntry:
        return self._item(name).entry

    def read(self, name: str) -> np.ndarray[Any, Any]:
        item = self._item(name)
        if item.value is not None:
            return item.value.copy()
        if item.entry.dtype.kind == "O":
            return self._read_strings(name, item)
        array = np.empty(item.entry.shape, item.entry.dtype)
        self.read_into(name, array)
        return array

    def read_into(self, name: str, buffer: BytesLike) -> None:
        item = self._item(name)
        target = flat_view(buffer)
        if item.entry.dtype.kind == "O":
            raise holds_strings(self, name)
        if target.size != item.entry.num_bytes:
            raise wrong_buffer(self, name, item.entry.num_bytes, target.size)
        if item.value is not None:
            target[:] = as_bytes(item.value)
            return
        dataset = self._open(name, item)
        if dataset.size:
            stored = dataset.dtype.newbyteorder("<") if item.view is None else item.view
            with _hdf5_errors(self.path, name):
                dataset.read_direct(target.view(stored).reshape(dataset.shape))

    def read_slice(self, name: str, start: int, stop: int) -> np.ndarray[Any, Any]:
        item = self._item(name)
        if not item.entry.shape:
            raise no_rows(self, name)
        if item.value is not None or item.entry.dtype.kind == "O":
            return self.read(name)[start:stop]
        dataset = self._open(name, item)
        start, stop, _ = slice(start, stop).indices(dataset.shape[0])
        with _hdf5_errors(self.path, name):
            rows = np.asarray(dataset[start : max(start, stop)])
        rows = np.ascontiguousarray(rows, rows.dtype.newbyteorder("<"))
        return rows.view(item.entry.dtype)

    def chunks(self, name: str) -> Iterator[BytesLike]:
        item = self._item(name)
        if item.value is not None:
            yield as_bytes(item.value)
            return
        dataset = self._open(name, item)
        stored = dataset.dtype.newbyteorder("<") if item.view is None else item.view
        for block in h5_blocks.blocks(dataset.shape, dataset.chunks, dataset.dtype.itemsize):
            with _hdf5_errors(self.path, name):
                part = dataset[block]
            yield as_bytes(np.asarray(part, stored))

    def verify(self) -> int:
        num_bytes = 0
        for name, item in self._items.items():
            if item.entry.dtype.kind == "O":
                self.read(name)
            else:
                for _ in self.chunks(name):
                    pass
            num_bytes += item.entry.num_bytes
        return num_bytes

    def check_complete(self) -> None:
        # When HDF5 opens a file, it compares the file's size with the declared size.
        self._check_open()

    def close(self) -> None:
        self._file.close()

    def root_attribute(self, name: str) -> Any:
        """Return an attribute of the root group, with text as str; None if the file lacks it."""
        self._check_open()
        value = self._file.attrs.get(name)
        return text_of(value) if isinstance(value, bytes | str) else value

    def kind(self, name: str) -> str:
        """Return the writer's name for a value's type, such as TorchTensorSerializer; empty if the file has none."""
        return str(self.metadata(name).get("__TYPE__") or self._kinds.get(name, ""))

    def metadata(self, name: str) -> dict[str, Any]:
        """Return the JSON metadata of a value in the current format; empty if it has none."""
        return self._metadata.get(name, {})

    def resolve(self, name: str) -> str:
        """Return the name under which a value is stored: another name if the value is a link."""
        return self._links.get(name, name)

    def object_bytes(self, name: str) -> bytes:
        """Return the raw pickle of an object that `skipped` names, for inspection, without loading it.

        Raises:
            KeyError: If there is no such object.
            CorruptCheckpointError: If its bytes are damaged.
        """
        self._check_open()
        with _hdf5_errors(self.path, name):
            node = self._file.get(name) or self._file.get(h5_format.quote(name))
            for key in ("object_value", "__BYTES__"):
                if node is not None and key in node.attrs:
                    value = node.attrs[key]
                    try:
                        return np.asarray(value).tobytes() if key == "__BYTES__" else bytes.fromhex(text_of(value))
                    except ValueError as exc:
                        raise CorruptCheckpointError(f"{self.path}: object {name!r} is damaged: {exc}") from exc
        raise KeyError(f"{self.path}: no pickled object {name!r}")

    def _item(self, name: str) -> Item:
        item = self._items.get(name)
        if item is None:
            if name in self.skipped:
                raise KeyError(f"{self.path}: {name!r} is not a tensor: {self.skipped[name]}")
            raise missing_tensor(self, name)
        return item

    def _check_open(self) -> None:
        if not self._file.id.valid:
            raise CheckpointError(f"{self.path}: this reader is closed")

    def _open(self, name: str, item: Item) -> Any:
        self._check_open()
        with _hdf5_errors(self.path, name):
            return open_dataset(self._file, item.link)

    def _walk(self, group: Any, prefix: str, seen: set[int], depth: int) -> None:
        if depth > _MAX_DEPTH:
            raise CheckpointError(f"{self.path}: groups are nested deeper than {_MAX_DEPTH}")
        for child in group:
            self._visits += 1
            if self._visits > _most_visits(self._size):
                raise CorruptCheckpointError(
                    f"{self.path}: its groups link to each other more often than a file of {self._size} bytes "
                    "needs. Use another checkpoint."
                )
            link = group.get(child, getlink=True)
            path = f"{prefix}{child}"
            if isinstance(link, h5py.ExternalLink):
                raise CheckpointError(
                    f"{self.path}: {path!r} links to another file, {link.filename!r}. Such links are refused, because "
                    "a checkpoint from elsewhere could read any of your files. Copy the value into the file."
                )
            try:
                node = group[child]
            except (KeyError, OSError) as exc:
                self.skipped[path] = f"a broken link: {_one_line(exc)}"
                continue
            if isinstance(node, h5py.Group):
                address = h5py.h5o.get_info(node.id).addr
                if address not in seen:
                    self._walk(node, path + "/", seen | {address}, depth + 1)
            elif isinstance(node, h5py.Dataset):
                self._add_dataset(path, node)

    def _add_dataset(self, path: str, dataset: Any) -> None:
        name = path
        if "/" not in path and h5_format.quote(h5_format.unquote(path)) == path:
            version = _version(self._file)
            if version is None or version < STORAGE_VERSION:
                name = h5_format.unquote(path)
        if name in self._items or name in self.skipped:
            raise CheckpointError(
                f"{self.path}: two tensors have the name {name!r}, one of them quoted; remove or rename one"
            )
        plist = dataset.id.get_create_plist()
        if plist.get_external_count() or dataset.is_virtual:
            raise CheckpointError(f"{self.path}: {name!r} keeps its values in another file, which is refused")
        self._kinds[name] = kind_of(dataset.attrs)
        try:
            item = item_of(FileFacts(self.path, self._size), path, dataset)
        except (TypeError, ValueError) as exc:
            self.skipped[name] = f"not of a tensor type: {_one_line(exc)}"
            return
        if isinstance(item, str):
            self.skipped[name] = item
        else:
            self._items[name] = item
            self._declared_bytes += item.entry.num_bytes
            if self._declared_bytes > most_bytes(self._size):
                raise CorruptCheckpointError(
                    f"{self.path}: its tensors declare more than {self._declared_bytes} bytes, in a file of "
                    f"{self._size}: damaged or hostile. Use another checkpoint."
                )

    def _read_strings(self, name: str, item: Item) -> np.ndarray[Any, Any]:
        dataset = self._open(name, item)
        with _hdf5_errors(self.path, name):
            stored = dataset[()]
        if item.view is not None:
            try:
                elements, _ = string_tensor.decode(stored.tobytes(), h5_format.num_elements(item.entry.shape))
            except ValueError as exc:
                raise CorruptCheckpointError(f"{self.path}: tensor {name!r} is damaged: {exc}") from exc
        else:
            values = np.asarray(stored, object).reshape(-1).tolist()
            elements = [value.encode() if isinstance(value, str) else value for value in values]
        return string_tensor.to_array(elements, item.entry.shape)

    def _add_json_values(self) -> None:
        """Add the scalars and strings of the current format, which are JSON attributes of the root."""
        for attribute in self._file.attrs:
            if attribute.endswith(METADATA_SUFFIX):
                self._add_json_value(attribute)
        for name, target in self._links.items():
            if target in self._items:
                self._items[name] = self._items[target]
            else:
                self.skipped[name] = f"a link to {target!r}, which does not exist"

    def _add_json_value(self, attribute: str) -> None:
        name = attribute.removesuffix(METADATA_SUFFIX)
        leaf = self._json_leaf(attribute, name)
        self._metadata[name] = leaf
        if "scalar_value" in leaf:
            self._add_number(name, leaf["scalar_value"])
            return
        if "string_value" in leaf:
            self._items[name] = small(np.array(str(leaf["string_value"]).encode(), object))
            return
        if leaf.get("__LINKED__"):
            self._links[name] = str(leaf.get("key"))
            return
        if name not in self._items and name not in self.skipped:
            self.skipped[name] = f"of kind {leaf.get('__TYPE__', 'unknown')}"

    def _json_leaf(self, attribute: str, name: str) -> Any:
        try:
            content = json.loads(text_of(self._file.attrs[attribute]))
            leaf = content.get(attribute, content)
            return {key: leaf[key] for key in leaf}
        except (ValueError, TypeError, AttributeError, RecursionError) as exc:
            raise CorruptCheckpointError(f"{self.path}: metadata of {name!r} is damaged: {exc}") from exc

    def _add_number(self, name: str, number: Any) -> None:
        value = np.asarray(number)
        if value.dtype.kind in "biuf":
            self._items[name] = small(value)
        else:
            self.skipped[name] = f"the number {number}, which no tensor type can hold"


class _hdf5_errors:
    """Turn an error that HDF5 raises while reading into one that names file and tensor."""

    def __init__(self, path: str, name: str) -> None:
        self._path, self._name = path, name

    def __enter__(self) -> None:
        return None

    def __exit__(self, exc_type: Any, exc: Any, traceback: Any) -> None:
        if isinstance(exc, OSError | RuntimeError | KeyError | MemoryError):
            raise CorruptCheckpointError(
                f"{self._path}: tensor {self._name!r} cannot be read: {_one_line(exc)}. Use another checkpoint."
            ) from exc


def _most_visits(file_bytes: int) -> int:
    return max(_ALWAYS_ALLOWED_VISITS, min(file_bytes // _LINK_BYTES, _MAX_VISITS))


def _version(file: Any) -> float | None:
    value = file.attrs.get("__version__")
    try:
        return None if value is None else float(value)
    except (TypeError, ValueError):
        return None


def _generation_of(file: Any, version: float | None) -> str:
    for child in file:
        node = file.get(child)
        if isinstance(node, h5py.Dataset):
            if h5_format.LEGACY_TYPE_ATTRIBUTE in node.attrs:
                return "cerebras H5Saver" + ("" if version is None else f" {version:g}")
            if any(key in node.attrs for key in ("is_none", "is_string", "is_scalar", "is_constructible")):
                return "cerebras 1.7 or 1.8"
    return "plain HDF5"


def _one_line(exc: BaseException) -> str:
    return " ".join(str(exc).split())


def _load_filters() -> None:
    try:
        import hdf5plugin  # noqa: F401 (registers LZ4, zstd, bitshuffle ...)
    except ImportError:
        # Files without these filters can still be read; for others, HDF5's error names the missing filter.
        return
