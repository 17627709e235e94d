"""The protocol between the chief and an input worker, over gRPC: one request, then one message for each batch.

| message | bytes |
|---|---|
| request | length of the header (8 bytes), header in JSON (`PartRequest` without its graph), GraphDef |
| batch | length of the header (8 bytes), header in JSON (element type and shape of each tensor), the tensors' bytes |

A string tensor is encoded as the lengths of its strings (int64), then all their bytes. The stream ends with the data.
A worker runs any graph that it gets, so it answers only callers that send its token.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

SERVICE = "cerebras_tensorflow.InputWorker"
BATCHES = f"/{SERVICE}/Batches"
TOKEN_KEY = "input-token"
PIPELINE_ERROR_KEY = "pipeline-error"
"""Key of trailing metadata: the pipeline raised an error. Without it, the worker was lost."""

UNLIMITED = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
_LENGTH = struct.Struct("<Q")


@dataclass(frozen=True)
class PartRequest:
    """The part of a dataset that one worker computes.

    Attributes:
        variant: Name of the tensor of the whole dataset in the graph. Its elements are tuples of dense tensors.
        index: Number of the worker.
        count: Number of workers. Worker `index` computes batches index, index + count, index + 2 count, ...
        first_batch: Number of batches of this part that the chief already has. The worker skips them.
        element_types: Names of the dtypes of an element's tensors.
        element_shapes: Shapes of these tensors. A None dim varies; a None shape has an unknown rank.
        initializers: Names of the ops to run first, which initialize tables and variables.
        graph_def: The chief's input graph, serialized.
    """

    variant: str
    index: int
    count: int
    first_batch: int
    element_types: tuple[str, ...]
    element_shapes: tuple[tuple[int | None, ...] | None, ...]
    initializers: tuple[str, ...]
    graph_def: bytes

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


def encode_batch(values: Sequence[np.ndarray[Any, Any]]) -> bytes:
    """Return the tensors of a batch as bytes."""
    header = [{"type": _type_name(value), "shape": value.shape} for value in values]
    return _framed(header, [piece for value in values for piece in _pieces(value)])


def decode_batch(message: bytes) -> list[np.ndarray[Any, Any]]:
    """Return the tensors of a batch. They share the message's memory, so they are read-only.

    Raises:
        ValueError: If the message is not a batch.
    """
    header, body = _unframed(message)
    values, place = [], 0
    for tensor in header:
        shape = tuple(tensor["shape"])
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


def worker_file(folder: Path, index: int) -> Path:
    """Return the file in which an input worker announces its address."""
    return folder / f"input-worker-{index}.json"


def replace_file(folder: Path, index: int) -> Path:
    """Return the file with which the chief asks for a replacement of a worker that does not answer."""
    return folder / f"input-worker-{index}.replace"


def _type_name(value: np.ndarray[Any, Any]) -> str:
    return "string" if value.dtype == object else str(tf.as_dtype(value.dtype).name)


def _pieces(value: np.ndarray[Any, Any]) -> Iterator[bytes | memoryview]:
    if value.dtype != object:
        yield np.ascontiguousarray(value).reshape(-1).view(np.uint8).data
        return
    strings = [bytes(item) for item in value.reshape(-1)]
    yield np.array([len(item) for item in strings], np.int64).tobytes()
    yield from strings


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
