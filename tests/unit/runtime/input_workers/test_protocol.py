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

from cerebras_tensorflow.runtime.input_workers.protocol import (
    PartRequest,
    decode_batch,
    encode_batch,
    freed_in,
    taken,
)
from cerebras_tensorflow.runtime.input_workers.shared_memory import MOST_FILES, ChiefMemory, WorkerMemory

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
    with WorkerMemory() as memory:
        message = encode_batch(batch, memory if is_local else None)
        received = decode_batch(message, ChiefMemory())
    assert (b'"memory"' in message) == (is_local and name == "large")
    assert [(value.dtype, value.shape) for value in received] == [(value.dtype, value.shape) for value in batch]
    for value, sent in zip(received, batch, strict=True):
        assert value.tolist() == sent.tolist()


def test_a_request_is_decoded_as_it_was_encoded() -> None:
    request = PartRequest("v:0", 1, 3, 7, ("float32", "string"), ((None, 2), None), ("init",), b"\x00graph")
    assert PartRequest.decoded(request.encoded()) == request
    assert request.element_spec() == (tf.TensorSpec((None, 2), tf.float32), tf.TensorSpec(None, tf.string))


def test_tensorflow_can_use_a_large_batch_without_a_copy() -> None:
    with WorkerMemory() as worker:
        message = encode_batch(BATCHES["large"], worker)
        values = decode_batch(message, ChiefMemory())
        assert all(value.ctypes.data % 64 == 0 and value.flags.writeable for value in values[:2])
        (place,) = [json.loads(message[8:])["memory"]]
        os.truncate(place["file"], 100)
        with pytest.raises(OSError, match="another batch, of 100 bytes"):
            decode_batch(message, ChiefMemory())
    with pytest.raises(FileNotFoundError):
        decode_batch(message, ChiefMemory())


def test_a_worker_writes_to_a_file_again_when_the_chief_has_no_more_use_of_it() -> None:
    chief, places = ChiefMemory(), []
    with WorkerMemory() as worker:
        first = chief.mapped(**worker.write([np.full(9000, 1, np.uint8)]))
        array = np.frombuffer(first, np.int32, 4, 64)
        del first
        assert chief.freed() == []  # the array is on its memory
        second = chief.mapped(**worker.write([np.full(9000, 2, np.uint8)]))
        del array
        freed = chief.freed()
        worker.free(freed_in(taken(freed)))
        for size in (50_000, 70):  # a file grows
            place = worker.write([np.full(size - 1, 3, np.uint8), np.full(1, 4, np.uint8)])
            assert bytes(chief.mapped(**place)) == b"\3" * (size - 1) + b"\4"
            places.append(place["file"])
            worker.free(chief.freed())
        assert places == freed * 2
        assert bytes(second) == b"\2" * 9000


def test_a_worker_makes_no_more_files_than_its_limit_and_frees_none_twice() -> None:
    with WorkerMemory() as worker:
        files = [worker.write([np.zeros(1, np.uint8)])["file"] for _ in range(MOST_FILES)]
        with pytest.raises(OSError, match="the chief uses 16 batches at once"):
            worker.write([np.zeros(1, np.uint8)])
        worker.free(files[:1])
        for wrong in (files[:1], [-1]):
            with pytest.raises(ValueError, match="not in use"):
                worker.free(wrong)


def test_a_file_that_is_not_the_batch_is_not_mapped(tmp_path: Path) -> None:
    batch = np.zeros(4096, np.uint8)
    (tmp_path / "file").write_bytes(bytes(batch))
    plain = os.open(tmp_path / "file", os.O_RDONLY)
    with WorkerMemory() as worker:
        place, other = worker.write([batch]), worker.write([batch])["file"]
        for descriptor in (plain, other):  # as in another container
            with pytest.raises(OSError, match=r"not a file in memory for batch|another batch"):
                ChiefMemory().mapped(**{**place, "file": descriptor})
        assert bytes(ChiefMemory().mapped(**place)) == bytes(batch)
    os.close(plain)


@pytest.mark.parametrize("call", ["memfd_create", "posix_fallocate"])
@pytest.mark.parametrize("code", [errno.EMFILE, errno.ENOMEM, errno.EPERM])
def test_without_a_file_in_memory_a_batch_goes_into_the_message(
    code: int, call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*_: object) -> int:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, call, failing)
    with WorkerMemory() as worker:
        values = [decode_batch(encode_batch(BATCHES["large"], worker), ChiefMemory()) for _ in range(MOST_FILES + 2)]
    assert [value.tolist() for value in values[-1]] == [value.tolist() for value in BATCHES["large"]]


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
        decode_batch(message, ChiefMemory())
