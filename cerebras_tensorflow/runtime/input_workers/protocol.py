"""The protocol between the chief and an input worker: a gRPC stream in each direction.

| message | from | bytes |
|---|---|---|
| request | chief | length of the header (8 bytes), header in JSON (`PartRequest` without its graph), GraphDef |
| batch | worker | length of the header (8 bytes), header in JSON, the tensors' bytes |
| taken | chief | numbers of files (int64): the chief has taken the oldest batch, and uses these files no more |

A batch's header has the element type, shape and first byte of each tensor, and what the worker does with its time.
A string tensor is encoded as the lengths of its strings (int64), then all their bytes. On one machine the tensors of a
large batch are not in the message, but in a file in memory that the chief maps (shared_memory.py). The stream ends when
the data end. A worker runs any graph that it gets, so it answers only callers that send its token.
"""

from __future__ import annotations

import json
import logging
import struct
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from cerebras_tensorflow.runtime.input_workers.shared_memory import ChiefMemory, WorkerMemory
from cerebras_tensorflow.runtime.input_workers.speed import Work

logger = logging.getLogger(__name__)

SERVICE = "cerebras_tensorflow.InputWorker"
BATCHES = f"/{SERVICE}/Batches"
TOKEN_KEY = "input-token"
PIPELINE_ERROR_KEY = "pipeline-error"
"""Key of trailing metadata: no worker can compute the part. An error without this key means a lost worker."""

INSIDE, OUTSIDE = "inside", "outside"
"""Its values. Inside: an op of the pipeline failed. Outside: the worker could not set up the pipeline or send data."""

MAX_TEXT_BYTES = 2000
"""gRPC sends an error's text as a header, escaped threefold, and refuses headers of more than 8 kB."""

SHARED_BYTES = 128 << 10
"""On one machine, share batches of at least this size in memory. For smaller ones a message costs less."""

_LENGTH = struct.Struct("<Q")
_ALIGNMENT = 64  # TensorFlow uses an array without a copy if it starts at such an address


@dataclass(frozen=True)
class PartRequest:
    """The part of a dataset that one worker computes.

    Attributes:
        variant: Name of the tensor of the whole dataset in the graph. Its elements are tuples of dense tensors.
        index: Number of the part.
        count: Number of parts. Part `index` has batches index, index + count, index + 2 count, ...
        first_batch: Number of batches of this part that the chief already has. The worker skips them.
        element_types: Names of the dtypes of an element's tensors.
        element_shapes: Shapes of these tensors. A None dim varies; a None shape has an unknown rank.
        initializers: Names of the ops to run first, which initialize tables and variables.
        graph_def: The chief's input graph, serialized.
        is_local: Whether the chief is on the worker's machine, and so can map the worker's memory.
    """

    variant: str
    index: int
    count: int
    first_batch: int
    element_types: tuple[str, ...]
    element_shapes: tuple[tuple[int | None, ...] | None, ...]
    initializers: tuple[str, ...]
    graph_def: bytes
    is_local: bool = False

    def element_spec(self) -> tuple[tf.TensorSpec, ...]:
        """Return the TensorSpecs of an element."""
        pairs = zip(self.element_types, self.element_shapes, strict=True)
        return tuple(tf.TensorSpec(shape, tf.as_dtype(name)) for name, shape in pairs)

    def encoded(self) -> bytes:
        """Return the request as bytes."""
        header = asdict(self)
        del header["graph_def"]
        return _framed(header, [self.graph_def])

    @staticmethod
    def decoded(message: bytes) -> PartRequest:
        """Return the request in a message.

        Raises:
            ValueError: If the message is not a request.
        """
        header, body = _unframed(message)
        header["element_types"] = tuple(header["element_types"])
        header["element_shapes"] = tuple(None if s is None else tuple(s) for s in header["element_shapes"])
        header["initializers"] = tuple(header["initializers"])
        return PartRequest(**header, graph_def=bytes(body))


def encode_batch(
    values: Sequence[np.ndarray[Any, Any]], memory: WorkerMemory | None = None, work: Work | None = None
) -> bytes:
    """Return the message for a batch.

    Args:
        values: The tensors.
        memory: Takes the tensors of a large batch, if it can. None: the message has all of them.
        work: What the worker does with its time; None: unknown.
    """
    header: dict[str, Any] = {} if work is None else {"work": [work.compute_s, work.share]}
    tensors, pieces, size = [], [], 0
    for value in values:
        own = [np.zeros(-size % _ALIGNMENT, np.uint8), *_pieces(value)]
        tensors.append({"type": _type_name(value), "shape": value.shape, "start": size + own[0].nbytes})
        pieces += own
        size += sum(piece.nbytes for piece in own)
    header["tensors"] = tensors
    if memory is not None and size >= SHARED_BYTES:
        try:
            return _framed({**header, "memory": memory.write(pieces)}, [])
        except OSError as error:
            logger.info("a batch of %d bytes goes into a message: %s", size, error)
    return _framed(header, [piece.data for piece in pieces])


def work_of(message: bytes) -> Work | None:
    """Return what a batch's worker does with its time; None if the message does not say it.

    Raises:
        ValueError: If the message is not a batch.
    """
    header, _ = _unframed(message)
    return Work(*map(float, header["work"])) if "work" in header else None


def decode_batch(message: bytes, memory: ChiefMemory) -> list[np.ndarray[Any, Any]]:
    """Return the tensors of a batch. They use the memory of the message or of the worker's file.

    Args:
        message: The message.
        memory: The files of this worker.

    Raises:
        ValueError: If the message is not a batch.
        OSError: If the worker's file cannot be opened, or is another file.
    """
    header, body = _unframed(message)
    if "memory" in header:
        body = memory.mapped(**header["memory"])
    values, place = [], 0
    for tensor in header["tensors"]:
        shape, place = tuple(tensor["shape"]), tensor["start"]
        size = int(np.prod(shape, dtype=np.int64))
        if tensor["type"] == "string":
            lengths = np.frombuffer(body, np.int64, size, place)
            place += lengths.nbytes
            value = np.empty(size, object)
            for number, length in enumerate(lengths.tolist()):
                value[number] = bytes(body[place : place + length])
                place += length
        else:
            dtype = np.dtype(tf.as_dtype(tensor["type"]).as_numpy_dtype)
            value = np.frombuffer(body, dtype, size, place)
            place += value.nbytes
        values.append(value.reshape(shape))
    if place != len(body):
        raise ValueError(f"a batch of {len(body)} bytes ends at byte {place}")
    return values


def taken(freed: Sequence[int]) -> bytes:
    """Return the message that the chief has taken a batch, and no more uses the bytes in these files."""
    return np.array(freed, np.int64).tobytes()


def freed_in(message: bytes) -> list[int]:
    """Return the files that a message of `taken` names.

    Raises:
        ValueError: If it is no such message.
    """
    return [int(file) for file in np.frombuffer(message, np.int64)]


def shortened(text: str) -> str:
    """Return an error's text, or its beginning and end if it is too long for a header."""
    content = text.encode(errors="replace")
    if len(content) <= MAX_TEXT_BYTES:
        return text
    half = MAX_TEXT_BYTES // 2
    return f"{content[:half].decode(errors='ignore')} [...] {content[-half:].decode(errors='ignore')}"


def worker_file(folder: Path, index: int) -> Path:
    """Return the file in which an input worker announces its address."""
    return folder / f"input-worker-{index}.json"


def replace_file(folder: Path, index: int) -> Path:
    """Return the file with which the chief asks for a replacement of a worker that does not answer."""
    return folder / f"input-worker-{index}.replace"


def _type_name(value: np.ndarray[Any, Any]) -> str:
    return "string" if value.dtype == object else str(tf.as_dtype(value.dtype).name)


def _pieces(value: np.ndarray[Any, Any]) -> Iterator[np.ndarray[Any, np.dtype[np.uint8]]]:
    if value.dtype != object:
        yield np.ascontiguousarray(value).reshape(-1).view(np.uint8)
        return
    strings = [bytes(item) for item in value.reshape(-1)]
    yield np.array([len(item) for item in strings], np.int64).view(np.uint8)
    yield np.frombuffer(b"".join(strings), np.uint8)


def _framed(header: Any, body: Sequence[bytes | memoryview]) -> bytes:
    text = json.dumps(header).encode()
    return b"".join([_LENGTH.pack(len(text)), text, *body])


def _unframed(message: bytes) -> tuple[Any, memoryview]:
    if len(message) < _LENGTH.size:
        raise ValueError(f"a message of {len(message)} bytes has no header")
    (length,) = _LENGTH.unpack_from(message)
    end = _LENGTH.size + length
    if end > len(message):
        raise ValueError(f"a header of {length} bytes in a message of {len(message)} bytes")
    return json.loads(message[_LENGTH.size : end]), memoryview(message)[end:]
