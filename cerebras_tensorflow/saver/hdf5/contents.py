"""The tensors of an open HDF5 file of any generation: their names, types and places. `process.py` runs this.

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
from typing import Any

import h5py
import numpy as np

from cerebras_tensorflow.errors import CheckpointError, CorruptCheckpointError
from cerebras_tensorflow.saver.hdf5 import format as h5_format
from cerebras_tensorflow.saver.hdf5.index import ALWAYS_ALLOWED_BYTES, most_bytes
from cerebras_tensorflow.saver.hdf5.item import Item
from cerebras_tensorflow.saver.hdf5.limits import limit_time
from cerebras_tensorflow.saver.hdf5.published_state import METADATA_SUFFIX, STORAGE_VERSION
from cerebras_tensorflow.saver.hdf5.values import FileFacts, item_of, kind_of, small, text_of

_MAX_DEPTH = 64
# Least size of a link and its object in a file [B]. A group with several links to it is visited once for each link.
_LINK_BYTES = 64
_ALWAYS_ALLOWED_VISITS, _MAX_VISITS = 10_000, 2_000_000
_MAX_CHARACTERS = 1 << 26  # of all names together, each with the groups above it
# Several links may name one tensor, as for tied weights. Reading the file reads it once for each link.
_MAX_TIMES_READ = 16


class Contents:
    """What an HDF5 file without our index contains.

    Args:
        file: The open h5py.File.
        path: Its path, for errors.
        size: Its size [B].
        accept_unindexed: Also read one of our files that has lost its index: it was cut short, or another program
            changed it.

    Raises:
        CheckpointError: If it uses another file, or two tensors have the same name.
        CorruptCheckpointError: If HDF5 cannot read it, or our index is lost.
    """

    def __init__(self, file: Any, path: str, size: int, accept_unindexed: bool) -> None:
        self.path = path
        self.skipped: dict[str, str] = {}
        self._file = file
        self._size = size
        self._items: dict[str, Item] = {}
        self._kinds: dict[str, str] = {}
        self._metadata: dict[str, dict[str, Any]] = {}
        self._links: dict[str, str] = {}
        self._visits = self._characters = 0
        self._declared_bytes = self._plain_bytes = 0
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
        except (OSError, RuntimeError, ValueError, TypeError, KeyError) as exc:
            raise CorruptCheckpointError(f"{self.path}: damaged: {_one_line(exc)}. Use another checkpoint.") from exc

    def as_json(self) -> dict[str, Any]:
        """Return everything as values for JSON."""
        return {
            "items": {name: item.as_json() for name, item in self._items.items()},
            "skipped": self.skipped,
            "kinds": self._kinds,
            "metadata": self._metadata,
            "links": self._links,
            "generation": self.generation,
        }

    def _walk(self, group: Any, prefix: str, seen: set[int], depth: int) -> None:
        if depth > _MAX_DEPTH:
            raise CheckpointError(f"{self.path}: groups are nested deeper than {_MAX_DEPTH}")
        for child in group:
            limit_time()
            path = f"{prefix}{child}"
            self._visits += 1
            self._characters += len(path)
            if self._visits > _most_visits(self._size):
                raise CorruptCheckpointError(
                    f"{self.path}: its groups link to each other more often than a file of {self._size} bytes "
                    "needs. Use another checkpoint."
                )
            if self._characters > _MAX_CHARACTERS:
                raise CorruptCheckpointError(
                    f"{self.path}: all names together, each with the groups above it, have more than {_MAX_CHARACTERS} "
                    "characters: damaged or hostile. Use another checkpoint."
                )
            link = group.get(child, getlink=True)
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
            self._check_size(item)

    def _check_size(self, item: Item) -> None:
        """Count a tensor's bytes, once for each link to it, and compare the sums with the size of the file."""
        self._declared_bytes += item.entry.num_bytes
        if self._declared_bytes > most_bytes(self._size):
            raise CorruptCheckpointError(
                f"{self.path}: its tensors declare more than {self._declared_bytes} bytes, in a file of "
                f"{self._size}: damaged or hostile. Use another checkpoint."
            )
        self._plain_bytes += item.entry.num_bytes if item.offset is not None else 0
        if self._plain_bytes > max(_MAX_TIMES_READ * self._size, ALWAYS_ALLOWED_BYTES):
            raise CorruptCheckpointError(
                f"{self.path}: so many links lead to the same tensors that reading them all takes more than "
                f"{_MAX_TIMES_READ} times the size of the file. Use another checkpoint, or remove links."
            )

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


def load_filters() -> None:
    """Register more filters with HDF5, if the package is installed."""
    try:
        import hdf5plugin  # noqa: F401 (registers LZ4, zstd, bitshuffle ...)
    except ImportError:
        # Files without these filters can still be read; for others, HDF5's error names the missing filter.
        return
