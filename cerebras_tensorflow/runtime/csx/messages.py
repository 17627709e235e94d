"""Messages of the first CSX to the others: a header in JSON and named arrays. Nothing in them is executed."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from cerebras_tensorflow.graph.program import dtype_from_name
from cerebras_tensorflow.runtime.collectives.interface import Bytes, Collectives

FIRST = 0  # rank of the first CSX
_LENGTH_BYTES = 8
_TEXT = "object"  # NumPy's dtype of tf.string


@dataclass(frozen=True)
class Message:
    """A message.

    Attributes:
        kind: What the receiver has to do.
        values: Values of JSON.
        arrays: Name -> array. The receiver must not change it.
    """

    kind: str
    values: Mapping[str, Any] = field(default_factory=dict)
    arrays: Mapping[str, np.ndarray] = field(default_factory=dict)


def encode(message: Message) -> Bytes:
    """Return a message as bytes."""
    parts: list[bytes] = []
    described: list[dict[str, Any]] = []
    for name, value in message.arrays.items():
        array = np.ascontiguousarray(value).reshape(np.shape(value))
        entry: dict[str, Any] = {"name": name, "dtype": array.dtype.name, "shape": list(array.shape)}
        if array.dtype == object:
            texts = [one if isinstance(one, bytes) else str(one).encode() for one in array.reshape(-1)]
            entry["lengths"] = [len(text) for text in texts]
            parts += texts
        elif array.dtype.kind in "SU":
            raise TypeError(f"{name}: text has dtype object in a batch, found {array.dtype}")
        else:
            parts.append(array.tobytes())
        described.append(entry)
    header = json.dumps({"kind": message.kind, "values": message.values, "arrays": described}).encode()
    return np.frombuffer(b"".join([len(header).to_bytes(_LENGTH_BYTES, "little"), header, *parts]), np.uint8)


def decode(data: Bytes) -> Message:
    """Return the message in some bytes."""
    view = data.data
    at = _LENGTH_BYTES + int.from_bytes(view[:_LENGTH_BYTES], "little")
    header = json.loads(bytes(view[_LENGTH_BYTES:at]))
    arrays: dict[str, np.ndarray] = {}
    for entry in header["arrays"]:
        shape = tuple(entry["shape"])
        if entry["dtype"] == _TEXT:
            texts = np.empty(len(entry["lengths"]), object)
            for number, length in enumerate(entry["lengths"]):
                texts[number] = bytes(view[at : at + length])
                at += length
            arrays[entry["name"]] = texts.reshape(shape)
            continue
        dtype = dtype_from_name(entry["dtype"])
        size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        arrays[entry["name"]] = data[at : at + size].copy().view(dtype).reshape(shape)  # aligned
        at += size
    return Message(header["kind"], header["values"], arrays)


def send(ranks: Collectives, messages: Sequence[Message]) -> None:
    """Send one message to each rank, from the first. The first one's own message is ignored."""
    nothing = np.empty(0, np.uint8)
    data = [nothing, *(encode(message) for message in messages[1:])]
    lengths = [nothing, *(np.array([part.nbytes], np.int64).view(np.uint8) for part in data[1:])]
    for parts in (lengths, data):
        ranks.exchange(parts, [nothing] * ranks.size)


def receive(ranks: Collectives) -> Message:
    """Return the next message of the first rank."""
    nothing = np.empty(0, np.uint8)
    rest = [nothing] * (ranks.size - 1)
    length = np.zeros(1, np.int64)
    ranks.exchange([nothing] * ranks.size, [length.view(np.uint8), *rest])
    data = np.empty(int(length[0]), np.uint8)
    ranks.exchange([nothing] * ranks.size, [data, *rest])
    return decode(data)


def answer(ranks: Collectives, message: Message) -> None:
    """Send a message to the first rank, which calls `answers`."""
    nothing = np.empty(0, np.uint8)
    rest = [nothing] * (ranks.size - 1)
    data = encode(message)
    for part in (np.array([data.nbytes], np.int64).view(np.uint8), data):
        ranks.exchange([part, *rest], [nothing] * ranks.size)


def answers(ranks: Collectives) -> list[Message]:
    """Return the message of each other rank, on the first one."""
    nothing = np.empty(0, np.uint8)
    lengths = [np.zeros(1, np.int64) for _ in range(1, ranks.size)]
    ranks.exchange([nothing] * ranks.size, [nothing, *(length.view(np.uint8) for length in lengths)])
    data = [np.empty(int(length[0]), np.uint8) for length in lengths]
    ranks.exchange([nothing] * ranks.size, [nothing, *data])
    return [decode(part) for part in data]
