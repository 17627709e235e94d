from __future__ import annotations

import json
import struct

import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf

from cerebras_tensorflow.runtime.input_workers.protocol import PartRequest, decode_batch, encode_batch

BATCHES = {
    "numbers": [np.arange(6, dtype=np.int64).reshape(2, 3), np.float32(3.5).reshape(())],
    "bfloat16": [np.array([1.5, -2.0], ml_dtypes.bfloat16)],
    "flags": [np.array([[True], [False]])],
    "strings": [np.array([[b"", b"a"], [b"\x00\xff", b"long" * 100]], object)],
    "nothing": [np.zeros((0, 4), np.float16), np.zeros((0,), object)],
    "not contiguous": [np.arange(12, dtype=np.int32).reshape(3, 4).T],
}


@pytest.mark.parametrize("name", BATCHES)
def test_a_batch_is_decoded_as_it_was_encoded(name: str) -> None:
    batch = BATCHES[name]
    received = decode_batch(encode_batch(batch))
    assert [(value.dtype, value.shape) for value in received] == [(value.dtype, value.shape) for value in batch]
    for value, sent in zip(received, batch, strict=True):
        assert value.tolist() == sent.tolist()


def test_a_request_is_decoded_as_it_was_encoded() -> None:
    request = PartRequest("v:0", 1, 3, 7, ("float32", "string"), ((None, 2), None), ("init",), b"\x00graph")
    assert PartRequest.decoded(request.encoded()) == request
    assert request.element_spec() == (tf.TensorSpec((None, 2), tf.float32), tf.TensorSpec(None, tf.string))


def framed(header: object, body: bytes = b"") -> bytes:
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + body


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"short",
        struct.pack("<Q", 1 << 60) + b"{}",
        framed([{"type": "float32", "shape": [4]}], b"\0" * 15),
        framed([{"type": "float32", "shape": [1]}], b"\0" * 5),
        framed([{"type": "float32", "shape": [1 << 40]}], b"\0" * 8),
    ],
)
def test_a_damaged_batch_is_refused(message: bytes) -> None:
    with pytest.raises(ValueError):
        decode_batch(message)
