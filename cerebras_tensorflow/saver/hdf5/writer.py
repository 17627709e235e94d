"""Writing HDF5 checkpoints that the published readers accept. HDF5 lays out the file; values are written without it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import h5py
import numpy as np
from h5py import h5a, h5d, h5f, h5fd, h5p, h5s, h5t

from cerebras_tensorflow.errors import CheckpointError
from cerebras_tensorflow.locations import local_path
from cerebras_tensorflow.saver.bundle import string_tensor
from cerebras_tensorflow.saver.files import writeback
from cerebras_tensorflow.saver.files.atomic import PartialFile, reporting, write_all
from cerebras_tensorflow.saver.files.contiguous import write_run
from cerebras_tensorflow.saver.files.writeback import WriteBehind
from cerebras_tensorflow.saver.hdf5 import compressed as h5_compressed
from cerebras_tensorflow.saver.hdf5 import format as h5_format
from cerebras_tensorflow.saver.hdf5 import index as h5_index
from cerebras_tensorflow.saver.hdf5 import update as h5_update
from cerebras_tensorflow.saver.hdf5.index import H5Index, H5Record
from cerebras_tensorflow.saver.hdf5.metadata_file import MetadataFile
from cerebras_tensorflow.saver.interface import BytesLike, Reservation, TensorWriter, as_bytes, check_written
from cerebras_tensorflow.saver.names import shards_of
from cerebras_tensorflow.saver.parts import Part, Written

# Large tensors begin on a page; small ones are packed.
_ALIGNED_FROM_BYTES = 64 << 10
_PAGE_BYTES = 4096
_META_BLOCK_BYTES = 64 << 10
_LZ4_FILTER = 32004


class H5Writer(TensorWriter):
    """One HDF5 checkpoint file being written.

    Args:
        path: Final path. An existing file stays until the new one is complete.
        compression: none, lz4 or gzip. Compressed tensors are smaller, slower, and cannot be updated in place.
        jobs: Number of compressing threads (for LZ4 only with the package lz4). It does not change the file.
        is_durable: Whether `commit` waits for the disk.
        has_many_attributes: Whether `annotate` will add many: each then takes the same time.

    Raises:
        ValueError: If the compression is unknown.
        CheckpointError: If another process is writing this file, or the folder cannot be written.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        compression: str = "none",
        jobs: int = 1,
        is_durable: bool = True,
        has_many_attributes: bool = False,
    ) -> None:
        if compression not in h5_format.COMPRESSIONS:
            raise ValueError(f"compression {compression!r}: expected one of {', '.join(h5_format.COMPRESSIONS)}")
        self.path = os.path.abspath(local_path(path))
        self._compression = compression
        self._is_durable = is_durable
        self.records: dict[str, H5Record] = {}
        self.is_placed = False
        self._placed: set[str] = set()  # tensors whose bytes another process still writes
        self._partial: PartialFile | None = PartialFile(self.path)
        # Finish an interrupted update now: its journal must not be applied to the new file.
        h5_update.replay(self.path)
        self._io = MetadataFile(self._partial.fd)
        self._behind = WriteBehind(self._partial.fd, is_durable)
        self._packer = h5_compressed.packer(compression, jobs)
        self._file = _create_file(self._io, has_many_attributes)
        self._attributes = _Attributes()
        self._attributes.write(self._file.id, h5_format.INDEX_ATTRIBUTE, True)

    def add(self, name: str, array: Any) -> None:
        array = np.asarray(array)
        if h5_format.type_name(array.dtype) != h5_format.STRING_TYPE:
            self.add_chunks(name, array.dtype, array.shape, [as_bytes(array)])
            return
        stored, _ = string_tensor.encode(string_tensor.to_elements(array))
        self._add(name, h5_format.STRING_TYPE, (len(stored),), array.shape, [stored])

    def add_chunks(self, name: str, dtype: Any, shape: tuple[int, ...], chunks: Iterable[BytesLike]) -> None:
        type_name = h5_format.type_name(np.dtype(dtype))
        if type_name == h5_format.STRING_TYPE:
            raise ValueError(f"{name}: strings cannot be added in chunks; use add")
        shape = tuple(int(dim) for dim in shape)
        self._add(name, type_name, shape, shape, chunks)

    def reserve(self, name: str, dtype: Any, shape: tuple[int, ...], crc: int) -> Reservation | None:
        type_name = h5_format.type_name(np.dtype(dtype))
        shape = tuple(int(dim) for dim in shape)
        if self._compression != "none" or type_name == h5_format.STRING_TYPE:
            return None
        dataset, num_bytes = self._append(name, type_name, shape, shape, None)
        offset = self._room(dataset, num_bytes)
        with reporting(self.path):
            self._io.check()
        self.records[name] = H5Record(type_name, shape, offset, num_bytes, crc)
        return Reservation(self.path, lambda content, position: self._behind.write_at(content, offset + position))

    def place(self, name: str, dtype: Any, shape: tuple[int, ...]) -> Part | None:
        found = self.reserve(name, dtype, shape, 0)
        record = self.records.get(name)
        if found is None or record is None or self._partial is None:
            return None
        if record.num_bytes:
            self._placed.add(name)
        inode = os.fstat(self._partial.fd).st_ino
        return Part(self._partial.path, record.num_bytes, record.offset, inode)

    def placed(self, name: str, written: Written) -> None:
        self.records[name] = replace(self.records[name], crc=written.crc)
        self._placed.discard(name)

    def annotate(self, attributes: Mapping[str, str | bool | float]) -> None:
        """Add attributes to the root group, for other readers."""
        for name, value in attributes.items():
            self._attributes.write(self._file.id, name, value)
        with reporting(self.path):
            self._io.check()

    def commit(self) -> None:
        replaced = shards_of(self.path) if os.path.exists(self.path) else []
        self.commit_as(self.path, (), self.records)
        with reporting(self.path):
            for path in replaced:
                os.unlink(path)

    def commit_as(self, path: str, shards: tuple[str, ...], records: dict[str, H5Record]) -> None:
        """Commit under a name in the same folder, with an index that may refer to other files."""
        if self._partial is None:
            raise CheckpointError(f"{self.path}: this writer has ended; open a new one to write again")
        try:
            check_written(self.path, self._placed)
            self._file.close()
            with reporting(self.path):
                self._io.check()
                self._behind.finish()
                end = os.fstat(self._partial.fd).st_size
                rest_crc = h5_index.rest_checksum(self._partial.fd, self.records, end)
                os.lseek(self._partial.fd, end, os.SEEK_SET)
                write_all(self._partial.fd, h5_index.encode(H5Index(records, shards, end, rest_crc)))
            self._partial.commit(path, self._is_durable)
        finally:
            self.abort()

    def abort(self) -> None:
        if self._partial is not None:
            self._behind.stop()
            if self._packer is not None:
                self._packer.close()
            # HDF5 flushes when it closes the file, which is about to be removed.
            self._io.drop_writes()
            with contextlib.suppress(OSError, RuntimeError, ValueError):
                self._file.close()
            self.is_placed = self._partial.is_placed
            self._partial.discard()
            self._partial = None

    def _add(
        self,
        name: str,
        type_name: str,
        stored_shape: tuple[int, ...],
        shape: tuple[int, ...],
        chunks: Iterable[BytesLike],
    ) -> None:
        stored = h5_format.stored_dtype(type_name)
        is_compressed = self._compression != "none" and 0 not in stored_shape and bool(stored_shape)
        chunk_shape = h5_compressed.chunk_shape(stored_shape, stored.itemsize) if is_compressed else None
        dataset, num_bytes = self._append(name, type_name, stored_shape, shape, chunk_shape)
        if chunk_shape is not None:
            offset = h5_index.NOT_CONTIGUOUS
            crc = h5_compressed.write_compressed(dataset, name, stored, stored_shape, chunk_shape, chunks, self._packer)
        else:
            offset = self._room(dataset, num_bytes)
            crc = write_run(self._behind, name, offset, num_bytes, chunks, self.path)
        with reporting(self.path):
            self._io.check()
        self.records[name] = H5Record(type_name, shape, offset, num_bytes, crc)

    def _append(
        self,
        name: str,
        type_name: str,
        stored_shape: tuple[int, ...],
        shape: tuple[int, ...],
        chunk_shape: tuple[int, ...] | None,
    ) -> tuple[h5d.DatasetID, int]:
        """Create a dataset with its attributes; return it and the size of its values [B]."""
        if self._partial is None:
            raise CheckpointError(f"{self.path}: this writer has ended; open a new one to write again")
        if name in self.records:
            raise ValueError(f"{self.path}: tensor {name!r} is added twice")
        stored = h5_format.stored_dtype(type_name)
        dataset = self._create(h5_format.quote(name), stored, stored_shape, chunk_shape)
        self._describe(dataset, type_name, shape)
        return dataset, h5_format.num_elements(stored_shape) * stored.itemsize

    def _room(self, dataset: h5d.DatasetID, num_bytes: int) -> int:
        """Reserve disk space for a contiguous dataset's values; return their offset."""
        assert self._partial is not None
        offset = int(dataset.get_offset()) if num_bytes else 0
        with reporting(self.path):
            writeback.reserve(self._partial.fd, offset, num_bytes)
        return offset

    def _create(
        self, link: str, dtype: np.dtype[Any], shape: tuple[int, ...], chunk_shape: tuple[int, ...] | None
    ) -> h5d.DatasetID:
        plist = h5p.create(h5p.DATASET_CREATE)
        plist.set_obj_track_times(False)
        if chunk_shape is None:
            plist.set_layout(h5d.CONTIGUOUS)
            # HDF5 allocates the space now, and we write the values.
            plist.set_alloc_time(h5d.ALLOC_TIME_EARLY)
            plist.set_fill_time(h5d.FILL_TIME_NEVER)
        else:
            plist.set_chunk(chunk_shape)
            if self._compression == "gzip":
                plist.set_deflate(h5_compressed.GZIP_LEVEL)
            else:
                h5_compressed.load_lz4()
                plist.set_filter(_LZ4_FILTER, 0, (0,))
        space = h5s.create_simple(shape) if shape else h5s.create(h5s.SCALAR)
        return h5d.create(self._file.id, link.encode(), h5t.py_create(dtype, logical=True), space, plist)

    def _describe(self, dataset: h5d.DatasetID, type_name: str, shape: tuple[int, ...]) -> None:
        write = self._attributes.write
        write(dataset, h5_format.LEGACY_TYPE_ATTRIBUTE, h5_format.LEGACY_ARRAY_TYPE)
        write(dataset, h5_format.BFLOAT16_ATTRIBUTE, type_name == "bfloat16")
        write(dataset, h5_format.STORAGE_TYPE_ATTRIBUTE, h5_format.STORAGE_ARRAY_TYPE)
        write(dataset, h5_format.STORAGE_NUMPY_ATTRIBUTE, True)
        if h5_format.is_raw_bits(type_name):
            write(dataset, h5_format.ELEMENT_TYPE_ATTRIBUTE, type_name)
        if type_name == h5_format.STRING_TYPE:
            write(dataset, h5_format.STRING_SHAPE_ATTRIBUTE, ",".join(str(dim) for dim in shape))


def _create_file(io: MetadataFile, has_many_attributes: bool) -> h5py.File:
    access = h5p.create(h5p.FILE_ACCESS)
    access.set_fclose_degree(h5f.CLOSE_STRONG)
    access.set_libver_bounds(h5f.LIBVER_EARLIEST, h5f.LIBVER_LATEST)
    access.set_alignment(_ALIGNED_FROM_BYTES, _PAGE_BYTES)
    access.set_meta_block_size(_META_BLOCK_BYTES)
    access.set_fileobj_driver(h5fd.fileobj_driver, io)
    creation = h5p.create(h5p.FILE_CREATE)
    if has_many_attributes:
        # The root then has a header of version 2, and HDF5 keeps more than 8 attributes in a heap with an index. In a
        # header of version 1 it goes through all attributes to add one.
        creation.set_attr_creation_order(h5p.CRT_ORDER_TRACKED)
    return h5py.File(h5f.create(b"checkpoint", h5f.ACC_TRUNC, creation, access))


class _Attributes:
    """Writes scalar attributes through h5py's low-level API: for 100 000 tensors the high-level one takes minutes."""

    def __init__(self) -> None:
        self._space = h5s.create(h5s.SCALAR)
        dtypes: dict[type, np.dtype[Any]] = {str: h5py.string_dtype(), bool: np.dtype(bool), float: np.dtype(float)}
        self._types = {kind: (dtype, h5t.py_create(dtype, logical=True)) for kind, dtype in dtypes.items()}

    def write(self, target: Any, name: str, value: str | bool | float) -> None:
        dtype, stored = self._types[type(value)]
        h5a.create(target, name.encode(), stored, self._space).write(np.array(value, dtype))
