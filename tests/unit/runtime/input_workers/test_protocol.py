from __future__ import annotations

import errno
import json
import os
import struct
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf

from cerebras_tensorflow.runtime.input_workers import shared_memory
from cerebras_tensorflow.runtime.input_workers.protocol import PartRequest, decode_batch, encode_batch

BATCHES = {
    "numbers": [np.arange(6, dtype=np.int64).reshape(2, 3), np.float32(3.5).reshape(())],
    "bfloat16": [np.array([1.5, -2.0], ml_dtypes.bfloat16)],
    "flags": [np.array([[True], [False]])],
    "strings": [np.array([[b"", b"a"], [b"\x00\xff", b"long" * 100]], object)],
    "nothing": [np.zeros((0, 4), np.float16), np.zeros((0,), object)],
    "not contiguous": [np.arange(12, dtype=np.int32).reshape(3, 4).T],
    "large": [np.arange(3, dtype=np.int8), np.arange(100_000).reshape(4, -1), np.array([b"a", b"bc"], object)],
}


@pytest.mark.parametrize("is_local", [False, True])
@pytest.mark.parametrize("name", BATCHES)
def test_a_batch_is_decoded_as_it_was_encoded(name: str, is_local: bool) -> None:
    batch = BATCHES[name]
    message, file = encode_batch(batch, is_local)
    received = decode_batch(message)
    assert (file is not None) == (is_local and name == "large")
    if file is not None:
        os.close(file)
    assert [(value.dtype, value.shape) for value in received] == [(value.dtype, value.shape) for value in batch]
    for value, sent in zip(received, batch, strict=True):
        assert value.tolist() == sent.tolist()


def test_a_request_is_decoded_as_it_was_encoded() -> None:
    request = PartRequest("v:0", 1, 3, 7, ("float32", "string"), ((None, 2), None), ("init",), b"\x00graph")
    assert PartRequest.decoded(request.encoded()) == request
    assert request.element_spec() == (tf.TensorSpec((None, 2), tf.float32), tf.TensorSpec(None, tf.string))


def test_tensorflow_can_use_a_large_batch_without_a_copy() -> None:
    message, file = encode_batch(BATCHES["large"], is_local=True)
    assert file is not None
    first, second = decode_batch(message), decode_batch(message)
    assert all(value.ctypes.data % 64 == 0 and value.flags.writeable for value in first[:2])
    first[1][:] = 0  # as an op that computes in place
    assert second[1].tolist() == BATCHES["large"][1].tolist()
    os.truncate(file, 100)
    with pytest.raises(OSError, match="another batch, of 100 bytes"):
        decode_batch(message)
    os.close(file)
    with pytest.raises(FileNotFoundError):
        decode_batch(message)


def test_a_file_that_is_not_the_batch_is_not_mapped(tmp_path: Path) -> None:
    batch = bytes(4096)
    file, other = shared_memory.write([batch]), shared_memory.write([batch])
    place = shared_memory.place_of(file, len(batch))
    (tmp_path / "file").write_bytes(batch)
    plain = os.open(tmp_path / "file", os.O_RDONLY)
    for descriptor in (plain, other):  # as in another container
        with pytest.raises(OSError, match=r"not a batch|another batch"):
            shared_memory.mapped(**{**place, "file": descriptor})
    assert bytes(shared_memory.mapped(**place)) == batch
    for descriptor in (file, other, plain):
        os.close(descriptor)


@pytest.mark.parametrize("code", [errno.EMFILE, errno.ENOMEM, errno.EPERM])
def test_without_a_file_in_memory_a_batch_goes_into_the_message(code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(name: str, flags: int) -> int:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(shared_memory.os, "memfd_create", failing)
    message, file = encode_batch(BATCHES["large"], is_local=True)
    assert file is None
    assert [value.tolist() for value in decode_batch(message)] == [value.tolist() for value in BATCHES["large"]]


def framed(header: object, body: bytes = b"") -> bytes:
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + body


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"short",
        struct.pack("<Q", 1 << 60) + b"{}",
        framed({"tensors": [{"type": "float32", "shape": [4], "start": 0}]}, b"\0" * 15),
        framed({"tensors": [{"type": "float32", "shape": [1], "start": 0}]}, b"\0" * 5),
        framed({"tensors": [{"type": "float32", "shape": [1], "start": 9}]}, b"\0" * 8),
        framed({"tensors": [{"type": "float32", "shape": [1 << 40], "start": 0}]}, b"\0" * 8),
    ],
)
def test_a_damaged_batch_is_refused(message: bytes) -> None:
    with pytest.raises(ValueError):
        decode_batch(message)
