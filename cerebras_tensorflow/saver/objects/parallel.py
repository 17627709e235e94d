"""Several processes write one checkpoint together. Names and layout do not depend on their number.

One process calls `start` and sends the plan to the others. Each process writes some of the plan's objects with
`write_part` and sends the result back. The first process calls `commit` with all results. Plans and parts are plain
values: `to_json` and `from_json` turn them into text for any transport.
"""

from __future__ import annotations

import contextlib
import json
import secrets
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import cached_property

from cerebras_tensorflow.errors import CheckpointError
from cerebras_tensorflow.locations import ObjectLocation
from cerebras_tensorflow.saver.files.checksum import combine, crc32c
from cerebras_tensorflow.saver.hdf5 import format as h5_format
from cerebras_tensorflow.saver.hdf5.index import H5Record
from cerebras_tensorflow.saver.interface import BytesLike, TensorEntry, flat_view
from cerebras_tensorflow.saver.objects import manifest as manifests
from cerebras_tensorflow.saver.objects.store import Bucket, Version, sizes_of
from cerebras_tensorflow.saver.objects.writer import data_keys, put_manifest

OBJECT_BYTES = 32 << 20
_THREADS = 4

ReadRun = Callable[[str, int, int], BytesLike]
"""read(name, start, stop): the bytes of a tensor from start to stop."""


@dataclass(frozen=True)
class Run:
    """A run of a tensor's bytes, from start to stop."""

    name: str
    start: int
    stop: int


@dataclass(frozen=True)
class Plan:
    """The layout of a checkpoint. It depends only on the tensors.

    A tensor of OBJECT_BYTES or more has objects of its own, so the process that owns a slice of it can write that
    slice. Smaller ones share objects with their neighbours.

    Attributes:
        unique: Part of the objects' names that no other save has.
        tensors: Name, type and shape of each tensor, in the order of the stream.
        replaced: Version of the manifest that `commit` replaces; None: there was none.
    """

    unique: str
    tensors: tuple[tuple[str, str, tuple[int, ...]], ...]
    replaced: Version | None = None

    @cached_property
    def objects(self) -> tuple[tuple[Run, ...], ...]:
        """The runs in each object, in the order of the stream."""
        objects: list[tuple[Run, ...]] = []
        shared: list[Run] = []
        for name, type_name, shape in self.tensors:
            size = _num_bytes(type_name, shape)
            filled = sum(run.stop for run in shared)
            if shared and (size >= OBJECT_BYTES or filled + size > OBJECT_BYTES):
                objects.append(tuple(shared))
                shared = []
            if size < OBJECT_BYTES:
                shared += [Run(name, 0, size)] if size else []
                continue
            starts = range(0, size, OBJECT_BYTES)
            objects += [(Run(name, start, min(start + OBJECT_BYTES, size)),) for start in starts]
        return (*objects, tuple(shared)) if shared else tuple(objects)

    def share(self, rank: int, num_writers: int) -> range:
        """Return the numbers of the objects that a process writes if all have all values: equal shares."""
        count = len(self.objects)
        return range(count * rank // num_writers, count * (rank + 1) // num_writers)

    def object_name(self, number: int) -> str:
        """Return the name of an object."""
        return f"data-{self.unique}-{number:05d}"

    def to_json(self) -> str:
        """Return the plan as text."""
        return json.dumps([self.unique, self.tensors, self.replaced])

    @classmethod
    def from_json(cls, text: str) -> Plan:
        """Return the plan that a text holds."""
        unique, tensors, replaced = json.loads(text)
        return cls(unique, tuple((name, kind, tuple(shape)) for name, kind, shape in tensors), replaced)


@dataclass(frozen=True)
class Part:
    """What one process has written.

    Attributes:
        objects: For each object its number, the checksums of its pieces, and the checksums of its runs.
    """

    objects: tuple[tuple[int, tuple[int, ...], tuple[int, ...]], ...]

    def to_json(self) -> str:
        """Return the part as text."""
        return json.dumps(asdict(self)["objects"])

    @classmethod
    def from_json(cls, text: str) -> Part:
        """Return the part that a text holds."""
        return cls(tuple((number, tuple(pieces), tuple(runs)) for number, pieces, runs in json.loads(text)))


def start(location: ObjectLocation, entries: Mapping[str, TensorEntry]) -> Plan:
    """Return the plan of a new checkpoint.

    Args:
        location: The checkpoint. An existing one stays readable until `commit` replaces it.
        entries: All tensors, in the order of the stream.

    Raises:
        ValueError: If a tensor has strings.
        CheckpointError: If the bucket cannot be read.
    """
    tensors = tuple((name, h5_format.type_name(entry.dtype), entry.shape) for name, entry in entries.items())
    for name, type_name, _ in tensors:
        if type_name == h5_format.STRING_TYPE:
            raise ValueError(f"{name}: strings cannot be written by several processes")
    replaced = Bucket(location).version(f"{location.key}/{manifests.NAME}")
    return Plan(f"{time.time_ns():x}{secrets.token_hex(4)}", tensors, replaced)


def write_part(location: ObjectLocation, plan: Plan, numbers: Iterable[int], read: ReadRun) -> Part:
    """Write some objects of a plan, several at a time.

    Args:
        location: The checkpoint.
        plan: The plan.
        numbers: Numbers of the objects: `plan.share`, or those whose runs this process owns.
        read: Returns the bytes of a run. Several threads call it at the same time.

    Raises:
        ValueError: If `read` returns another number of bytes.
        CheckpointError: If an object cannot be written.
    """
    bucket = Bucket(location)

    def write(number: int) -> tuple[int, tuple[int, ...], tuple[int, ...]]:
        content, crcs = bytearray(), []
        for run in plan.objects[number]:
            view = flat_view(read(run.name, run.start, run.stop))
            if view.size != run.stop - run.start:
                raise ValueError(f"{run.name}: {view.size} bytes for the run from {run.start} to {run.stop}")
            crcs.append(crc32c(view))
            content += view.data
        bucket.put(f"{location.key}/{plan.object_name(number)}", content)
        pieces = range(0, len(content), manifests.PIECE_BYTES)
        with memoryview(content) as view_:
            checks = tuple(crc32c(view_[at : at + manifests.PIECE_BYTES]) for at in pieces)
        return number, checks, tuple(crcs)

    with ThreadPoolExecutor(_THREADS, "object-writer") as pool:
        return Part(tuple(pool.map(write, numbers)))


def commit(location: ObjectLocation, plan: Plan, parts: Sequence[Part]) -> None:
    """Make a checkpoint readable, if all of its objects are written and no other writer was first.

    Raises:
        CheckpointError: If objects are missing, or another process has written this checkpoint meanwhile.
    """
    written = {number: (pieces, runs) for part in parts for number, pieces, runs in part.objects}
    missing = [plan.object_name(number) for number in range(len(plan.objects)) if number not in written]
    if missing:
        raise CheckpointError(f"{location}: {len(missing)} objects are not written, first {missing[0]}. Save it again.")
    bucket = Bucket(location)
    names = tuple(map(plan.object_name, range(len(plan.objects))))
    sizes = tuple(sum(run.stop - run.start for run in runs) for runs in plan.objects)
    keys = [f"{location.key}/{name}" for name in names]
    if list(sizes_of(bucket, location.key, keys)) != list(sizes):
        raise CheckpointError(f"{location}: objects were removed before the checkpoint was complete. Save it again.")
    crcs: dict[str, int] = {}
    for number, runs in enumerate(plan.objects):
        for run, crc in zip(runs, written[number][1], strict=True):
            crcs[run.name] = combine(crcs.get(run.name, 0), crc, run.stop - run.start)
    checks = tuple(tuple(written[number][0]) for number in range(len(names)))
    manifest = manifests.Manifest(_records(plan, crcs), names, sizes, checks)
    existing = bucket.get(f"{location.key}/{manifests.NAME}")
    put_manifest(bucket, location.key, manifests.encode(manifest), plan.replaced, keys)
    if existing is not None:
        # The checkpoint is committed: what is left of the old one costs space only, and a sweep finds it.
        with contextlib.suppress(CheckpointError):
            bucket.delete(data_keys(bucket, location.key, existing[0]))


def discard(location: ObjectLocation, plan: Plan) -> None:
    """Remove the objects of a plan that will not be committed."""
    Bucket(location).delete([f"{location.key}/{plan.object_name(k)}" for k in range(len(plan.objects))])


def _records(plan: Plan, crcs: Mapping[str, int]) -> dict[str, H5Record]:
    records, offset = {}, 0
    for name, type_name, shape in plan.tensors:
        size = _num_bytes(type_name, shape)
        records[name] = H5Record(type_name, shape, offset, size, crcs.get(name, 0))
        offset += size
    return records


def _num_bytes(type_name: str, shape: tuple[int, ...]) -> int:
    return h5_format.num_elements(shape) * h5_format.dtype_named(type_name).itemsize
