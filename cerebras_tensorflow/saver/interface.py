"""The interface of every checkpoint reader and writer, for any format on disk."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, ClassVar, TypeAlias, TypeVar

import numpy as np

from cerebras_tensorflow.errors import CheckpointError
from cerebras_tensorflow.saver.parts import Part, Written
from cerebras_tensorflow.text import did_you_mean

# NumPy 2 has the same limit.
_MAX_RANK = 64
_MAX_COMPARED_NAMES = 20_000
_MAX_COMPARED_CHARACTERS = 300

_Reader = TypeVar("_Reader", bound="TensorReader")
_Writer = TypeVar("_Writer", bound="TensorWriter")
BytesLike: TypeAlias = bytes | bytearray | memoryview | np.ndarray[Any, Any]


@dataclass(frozen=True)
class TensorEntry:
    """One stored tensor, as its file declares it.

    Attributes:
        dtype: Element type; `object` for a tensor of strings, whose elements are `bytes`.
        shape: Dims; empty for a scalar.
        num_bytes: Size of the value [B]; of a string tensor, its size in the file.
    """

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    num_bytes: int


@dataclass(frozen=True)
class StoredExtent:
    """A run of bytes in a file that is a tensor's value exactly as it is in memory.

    Attributes:
        path: The file.
        offset: Of the first byte.
        crc: CRC-32C of the bytes.
    """

    path: str
    offset: int
    crc: int


@dataclass(frozen=True)
class Reservation:
    """Space for the bytes of one tensor in a checkpoint that is being written.

    Attributes:
        path: The checkpoint, for messages.
        write: Writes bytes at a position of the tensor; from any thread.
    """

    path: str
    write: Callable[[memoryview, int], None]


class TensorReader(ABC):
    """Named tensors of one checkpoint, read one at a time. A context manager.

    Attributes:
        path: The checkpoint.
        reads_ahead: Whether `chunks` reads the next pieces in other threads.
    """

    path: str
    reads_ahead: ClassVar[bool] = False

    @abstractmethod
    def names(self) -> list[str]:
        """Return the names of all tensors, sorted."""

    @abstractmethod
    def __contains__(self, name: object) -> bool:
        """Whether a tensor of that name is stored."""

    @abstractmethod
    def entry(self, name: str) -> TensorEntry:
        """Return what the file declares about a tensor, without reading its value.

        Raises:
            KeyError: If the checkpoint has no such tensor; names the nearest.
        """

    def extent(self, name: str) -> StoredExtent | None:  # noqa: ARG002 (overrides use it)
        """Return where a tensor's bytes can be read without this reader; None if they cannot (compressed, or strings).

        Raises:
            KeyError: As `entry`.
        """
        return None

    def will_read(self, names: Iterable[str]) -> None:  # noqa: B027 (only some readers use it)
        """Tell the reader which tensors it will be asked for next, in this order, so that it can read ahead."""

    @abstractmethod
    def read(self, name: str) -> np.ndarray[Any, Any]:
        """Return the value of a tensor, checked against its checksum.

        Raises:
            KeyError: As `entry`.
            CorruptCheckpointError: If the stored bytes are cut short or damaged; names file and tensor.
        """

    @abstractmethod
    def read_into(self, name: str, buffer: BytesLike) -> None:
        """Fill a writable, contiguous buffer of `entry(name).num_bytes` bytes with a tensor's little-endian bytes.

        Raises:
            KeyError, CorruptCheckpointError: As `read`.
            ValueError: If the size of the buffer is wrong, or the tensor holds strings.
        """

    def read_region(self, name: str, region: tuple[slice, ...]) -> np.ndarray[Any, Any]:
        """Return a part of a tensor, one slice for each dim.

        Raises:
            KeyError, CorruptCheckpointError: As `read`.
            CheckpointError: If the checkpoint has no value for some of it.
        """
        return self.read(name)[region]

    @abstractmethod
    def read_slice(self, name: str, start: int, stop: int) -> np.ndarray[Any, Any]:
        """Return rows start to stop along axis 0, unverified: checksums cover whole tensors only."""

    @abstractmethod
    def chunks(self, name: str) -> Iterator[BytesLike]:
        """Yield a tensor's little-endian bytes in order, in pieces of at most a few megabytes.

        A piece is valid until the next is requested. The checksum is compared after the last piece: trust no piece
        before that.

        Raises:
            KeyError, CorruptCheckpointError: As `read`.
            ValueError: If the tensor holds strings.
        """

    @abstractmethod
    def verify(self) -> int:
        """Compare every tensor with its checksum, in bounded memory; return the number of bytes checked.

        Raises:
            CorruptCheckpointError: At the first damage.
        """

    @abstractmethod
    def check_complete(self) -> None:
        """Check that every file exists and is long enough for its tensors; reads no values.

        Raises:
            CorruptCheckpointError: If one is missing or too short; names it.
        """

    def check_places(self) -> None:  # noqa: B027 (most formats cannot have such tensors)
        """Refuse tensors that together have more bytes than their files: a small file could fill memory or disk.

        Raises:
            CorruptCheckpointError: If there are such tensors.
        """

    @abstractmethod
    def close(self) -> None:
        """Release the files. Reading afterwards is an error."""

    def __enter__(self: _Reader) -> _Reader:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def missing_tensor(reader: TensorReader, name: str) -> KeyError:
    """Return the error for a tensor that a checkpoint does not have; it names the nearest one."""
    names = reader.names()
    # Comparing two names takes time in proportion to the product of their lengths.
    is_short = len(name) <= _MAX_COMPARED_CHARACTERS
    known = [other for other in names[:_MAX_COMPARED_NAMES] if len(other) <= _MAX_COMPARED_CHARACTERS]
    hint = did_you_mean(name, known) if is_short else ""
    return KeyError(f"{reader.path}: no tensor {name!r}{hint or f'; it has {len(names)} tensors'}")


def holds_strings(reader: TensorReader, name: str) -> ValueError:
    """Return the error for a request for the bytes of a string tensor."""
    return ValueError(f"{reader.path}: tensor {name!r} holds strings; use read")


def wrong_buffer(reader: TensorReader, name: str, num_bytes: int, buffer_bytes: int) -> ValueError:
    """Return the error for a buffer whose size is not the tensor's."""
    return ValueError(f"{reader.path}: tensor {name!r} has {num_bytes} bytes, the buffer {buffer_bytes}")


def row_range(reader: TensorReader, name: str, shape: Sequence[int], start: int, stop: int) -> tuple[int, int]:
    """Return the first row of a slice and the row after its last, both within a tensor and in this order.

    Args:
        reader: The reader, for the error.
        name: Name of the tensor.
        shape: Its shape.
        start: As in `tensor[start:stop]`.
        stop: As in `tensor[start:stop]`.

    Raises:
        ValueError: If the tensor is a scalar.
    """
    if not shape:
        raise ValueError(f"{reader.path}: tensor {name!r} is a scalar and has no rows")
    start, stop, _ = slice(start, stop).indices(shape[0])
    return start, max(start, stop)


class TensorWriter(ABC):
    """A checkpoint being written. A context manager: it commits at its normal end, and aborts on an exception.

    Even after a crash, either the whole checkpoint has its final name or no part of it does.
    """

    path: str

    @abstractmethod
    def add(self, name: str, array: Any) -> None:
        """Append a tensor: any value that NumPy converts to an array. Strings are stored as UTF-8 bytes.

        Raises:
            ValueError: If the name was added before, or the format cannot hold this type.
            CheckpointError: If the file cannot be written (disk full, no permission).
        """

    @abstractmethod
    def add_chunks(self, name: str, dtype: Any, shape: tuple[int, ...], chunks: Iterable[BytesLike]) -> None:
        """Append a tensor from pieces of its little-endian bytes, of any size, so it need not fit in memory.

        Raises:
            ValueError: As `add`, and if the total size of the pieces does not fit dtype and shape.
            CheckpointError: As `add`.
        """

    def reserve(self, name: str, dtype: Any, shape: tuple[int, ...], crc: int) -> Reservation | None:  # noqa: ARG002
        """Append a tensor whose bytes the caller writes into the returned space before `commit`.

        Args:
            name: As `add_chunks`.
            dtype: As `add_chunks`.
            shape: As `add_chunks`.
            crc: CRC-32C of the little-endian bytes; the caller checks that they match.

        Returns:
            The space. None if this writer does not store the bytes unchanged; then nothing is appended.

        Raises:
            ValueError, CheckpointError: As `add_chunks`.
        """
        return None

    def place(self, name: str, dtype: Any, shape: tuple[int, ...]) -> Part | None:  # noqa: ARG002
        """Append a tensor whose bytes another process writes. Report them with `placed` before `commit`.

        Args:
            name: As `add_chunks`.
            dtype: As `add_chunks`.
            shape: As `add_chunks`.

        Returns:
            Where the bytes go. None if this writer has to get them itself; then nothing is appended.

        Raises:
            ValueError, CheckpointError: As `add_chunks`.
        """
        return None

    def placed(self, name: str, written: Written) -> None:
        """Note that the bytes of a placed tensor are written."""
        raise NotImplementedError(f"{type(self).__name__} places no tensors: {name}, {written}")

    @abstractmethod
    def commit(self) -> None:
        """Give the checkpoint its final name, durably unless the writer was made with is_durable=False."""

    @abstractmethod
    def abort(self) -> None:
        """Remove everything written so far. Does nothing after `commit`."""

    def __enter__(self: _Writer) -> _Writer:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if exc_type is None:
            self.commit()
        else:
            self.abort()


def check_written(path: str, names: Collection[str]) -> None:
    """Check that no tensor of a checkpoint is left that another process should have written.

    Raises:
        CheckpointError: If there is one.
    """
    if names:
        raise CheckpointError(
            f"{path}: not committed: {len(names)} tensors were not written, first {min(names)}. Save it again."
        )


def as_bytes(array: np.ndarray[Any, Any]) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Return an array's little-endian bytes as a flat uint8 array; shares memory if it already is contiguous."""
    if array.dtype.byteorder == ">" or (array.dtype.byteorder == "=" and np.little_endian is False):
        array = array.astype(array.dtype.newbyteorder("<"))
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def flat_view(buffer: BytesLike) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Return a bytes-like object as a flat uint8 array that shares its memory.

    Raises:
        ValueError: If an array is not C-contiguous: reshaping would copy it, and silently share no memory.
    """
    if isinstance(buffer, np.ndarray):
        if not buffer.flags.c_contiguous:
            raise ValueError(
                f"a buffer of shape {buffer.shape} is not C-contiguous; pass numpy.ascontiguousarray of it"
            )
        return buffer.reshape(-1).view(np.uint8)
    view = memoryview(buffer).cast("B")
    return np.frombuffer(view, np.uint8) if view.nbytes else np.empty(0, np.uint8)


def check_shape(shape: tuple[int, ...]) -> None:
    """Check a shape that a file declares before it is used.

    Raises:
        ValueError: If a dim is not a valid size, or the shape has too many dims or elements for an array.
    """
    largest = 1
    for dim in shape:
        if type(dim) is not int or not 0 <= dim < 1 << 62 or len(shape) > _MAX_RANK:
            raise ValueError(f"a shape that no tensor has: {str(shape)[:80]}")
        largest *= dim or 1
    # NumPy limits the product of the other dims of an empty array too.
    if largest >= 1 << 59:
        raise ValueError(f"a shape that no tensor has: {str(shape)[:80]}")


def target_view(
    reader: TensorReader, name: str, entry: TensorEntry, buffer: BytesLike
) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Return a buffer for all bytes of a tensor as a flat uint8 array.

    Raises:
        ValueError: If the tensor holds strings, or the buffer has another size.
    """
    if entry.dtype.kind == "O":
        raise holds_strings(reader, name)
    target = flat_view(buffer)
    if target.size != entry.num_bytes:
        raise wrong_buffer(reader, name, entry.num_bytes, target.size)
    return target
