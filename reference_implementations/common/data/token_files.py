"""Reads and writes files of tokens. Imports TensorFlow only to write TFRecords.

An HDF5 file holds the dataset `data` (samples, 3, S) int32 and the attribute `n_examples`; the three rows of a sample
are input_ids, input_mask (1 at tokens that count) and labels (the next token), as in the public Model Zoo. A TFRecord
holds the three under the same names, as int64 lists of length S.

# S sequence
"""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from cerebras_tensorflow import files
from cerebras_tensorflow.errors import MissingDataError, SettingsError

Sample = TypeVar("Sample")
FEATURES = ("input_ids", "input_mask", "labels")
HDF5, TFRECORD = "hdf5", "tfrecord"
_OURS = re.compile(r"data-\d{5}\.(h5|tfrecord)")
_PATTERNS = {HDF5: ("*.h5", "*.hdf5"), TFRECORD: ("*.tfrecord*",)}
_PROCESSORS = {"GptHDF5DataProcessor": HDF5, "GptTfRecordsProcessor": TFRECORD}


def find_files(
    data_dir: str | Sequence[str], data_processor: str | None, element_spec: Any = None
) -> tuple[str, list[str]]:
    """Return the kind of files in some folders, and their paths, sorted by folder and name.

    Args:
        data_dir: The folders.
        data_processor: The kind to look for; None: whichever kind the folders have.
        element_spec: Shapes and types of a batch of these files, for MissingDataError.

    Raises:
        MissingDataError: If there are no files.
        SettingsError: If there are files of both kinds and no data_processor says which.
    """
    folders = [data_dir] if isinstance(data_dir, str) else list(data_dir)
    found: dict[str, list[str]] = {}
    for kind, patterns in _PATTERNS.items():
        paths = [
            str(path)
            for folder in folders
            for path in sorted(itertools.chain.from_iterable(Path(folder).glob(pattern) for pattern in patterns))
        ]
        if paths and (data_processor is None or _PROCESSORS[data_processor] == kind):
            found[kind] = paths
    where = f"data_dir {', '.join(map(repr, folders))}"
    if not found:
        kinds = [_PROCESSORS[data_processor]] if data_processor else list(_PATTERNS)
        wanted = " or ".join(pattern for kind in kinds for pattern in _PATTERNS[kind])
        raise MissingDataError(f"{where}: no {wanted} files", element_spec)
    if len(found) > 1:
        raise SettingsError(f"{where}: files of both kinds; choose one with data_processor")
    return next(iter(found.items()))


class Hdf5Samples:
    """The samples of some HDF5 files, as one sequence with random access.

    Args:
        paths: The files.
        sequence: S that every file must have.

    Raises:
        SettingsError: If a file holds no tokens, or has another S.
    """

    def __init__(self, paths: Sequence[str], sequence: int) -> None:
        import h5py  # takes a while to import

        self._open = h5py.File
        self._files: dict[int, Any] = {}
        self._paths = list(paths)
        counts = []
        for path in paths:
            try:
                with h5py.File(path, "r") as file:
                    shape = file["data"].shape
            except (OSError, KeyError) as exc:
                raise SettingsError(f"{path} is not an HDF5 file with a dataset 'data': {exc}") from exc
            if len(shape) != 3 or shape[1:] != (len(FEATURES), sequence):
                raise SettingsError(
                    f"{path}: 'data' has shape {shape}; expected (samples, {len(FEATURES)}, max_sequence_length = "
                    f"{sequence})"
                )
            counts.append(shape[0])
        self._starts = np.cumsum([0, *counts])

    def __len__(self) -> int:
        return int(self._starts[-1])

    def read(self, index_B: np.ndarray) -> np.ndarray:
        """Return samples by number, (B, 3, S) int32."""
        rows = []
        for index in index_B:
            number = int(np.searchsorted(self._starts, index, side="right")) - 1
            if number not in self._files:
                self._files[number] = self._open(self._paths[number], "r")
            rows.append(self._files[number]["data"][int(index) - int(self._starts[number])])
        return np.stack(rows).astype(np.int32)


def windows(tokens: Iterable[int], sequence: int) -> Iterator[np.ndarray]:
    """Yield samples (3, S) int32 of a stream of tokens. Each begins with the last label of the previous sample.

    The last sample is padded with zeros, whose mask is 0. A stream of a single token gives no sample.
    """
    stream = iter(tokens)
    rest = list(itertools.islice(stream, 1))
    while True:
        rest += itertools.islice(stream, sequence)
        length = len(rest) - 1
        if length < 1:
            return
        sample = np.zeros([len(FEATURES), sequence], np.int32)
        sample[0, :length], sample[1, :length], sample[2, :length] = rest[:-1], 1, rest[1:]
        yield sample
        rest = rest[-1:]


def write_hdf5(samples: Iterable[np.ndarray], folder: str, samples_per_file: int = 100_000) -> list[str]:
    """Write samples (3, S) to `<folder>/data-00000.h5`, ...; return the paths. Files appear only when complete."""
    import h5py

    os.makedirs(folder, exist_ok=True)
    paths: list[str] = []
    for chunk in _chunks(samples, samples_per_file):
        path = os.path.join(folder, f"data-{len(paths):05d}.h5")
        with files.atomic_path(path) as draft, h5py.File(draft, "w", locking=False) as file:
            file.create_dataset("data", data=np.stack(chunk).astype(np.int32))
            file.attrs["n_examples"] = len(chunk)
        paths.append(path)
    _remove_others(folder, paths)
    return paths


def write_tfrecords(samples: Iterable[np.ndarray], folder: str, samples_per_file: int = 100_000) -> list[str]:
    """Write samples (3, S) to `<folder>/data-00000.tfrecord`, ...; return the paths."""
    return write_examples((dict(zip(FEATURES, rows, strict=True)) for rows in samples), folder, samples_per_file)


def write_examples(
    samples: Iterable[Mapping[str, np.ndarray]], folder: str, samples_per_file: int = 100_000
) -> list[str]:
    """Write samples of named lists, integers as int64 and others as float; else as `write_tfrecords` does."""
    import tensorflow as tf

    os.makedirs(folder, exist_ok=True)
    paths: list[str] = []
    for chunk in _chunks(samples, samples_per_file):
        path = os.path.join(folder, f"data-{len(paths):05d}.tfrecord")
        with files.atomic_path(path) as draft, tf.io.TFRecordWriter(os.fspath(draft)) as writer:
            for sample in chunk:
                features = {
                    name: tf.train.Feature(int64_list=tf.train.Int64List(value=row))
                    if np.issubdtype(row.dtype, np.integer)
                    else tf.train.Feature(float_list=tf.train.FloatList(value=row))
                    for name, row in sample.items()
                }
                writer.write(tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString())
        paths.append(path)
    _remove_others(folder, paths)
    return paths


def _remove_others(folder: str, paths: Sequence[str]) -> None:
    """Remove the surplus files of an earlier conversion in the same folder: a run would read them too."""
    kept = {os.path.basename(path): Path(path).suffix for path in paths}
    for path in Path(folder).glob("data-*"):
        if path.name not in kept and path.suffix in kept.values() and _OURS.fullmatch(path.name):
            path.unlink()


def _chunks(samples: Iterable[Sample], size: int) -> Iterator[list[Sample]]:
    stream = iter(samples)
    while chunk := list(itertools.islice(stream, size)):
        yield chunk
