"""An input worker in this process: authentication, batches, errors and replacement."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import grpc
import numpy as np
import pytest
import tensorflow as tf

from cerebras_tensorflow.runtime.host.announcement import announce, read_announcement
from cerebras_tensorflow.runtime.input_workers import chief, process
from cerebras_tensorflow.runtime.input_workers.protocol import BATCHES, TOKEN_KEY, PartRequest, worker_file
from cerebras_tensorflow.runtime.input_workers.remote import RemotePart

LOOPBACK = "127.0.0.1"


def never() -> bool:
    return False


def request_of(dataset_fn) -> PartRequest:
    with tf.Graph().as_default():
        tf.compat.v1.set_random_seed(1)
        flat = dataset_fn().map(lambda x: (x,))
        return chief.part_requests(flat, 1)[0]


def squares() -> tf.data.Dataset:
    return tf.data.Dataset.range(40).shuffle(9).map(lambda x: x * x).batch(4)


class Worker:
    """A server that has announced itself as worker 0 of a folder."""

    def __init__(self, folder: Path, token: str = "secret") -> None:
        self.server, self.port = process.start(LOOPBACK, token)
        announce(worker_file(folder, 0), {"target": f"{LOOPBACK}:{self.port}", "token": token, "pid": os.getpid()})


@pytest.fixture
def worker(tmp_path: Path) -> Iterator[Worker]:
    made = Worker(tmp_path)
    yield made
    made.server.stop(None)


def drained(part: RemotePart) -> list[bytes]:
    batches = []
    while (batch := part.next_batch(never)) is not None:
        batches.append(batch[0].tobytes())
    part.close()
    return batches


def local_batches(dataset_fn) -> list[bytes]:
    with tf.Graph().as_default():
        tf.compat.v1.set_random_seed(1)
        iterator = tf.compat.v1.data.make_initializable_iterator(dataset_fn())
        value, batches = iterator.get_next(), []
        with tf.compat.v1.Session() as session:
            session.run(iterator.initializer)
            while True:
                try:
                    batches.append(session.run(value).tobytes())
                except tf.errors.OutOfRangeError:
                    return batches


def test_batches_of_a_worker_equal_those_of_the_dataset(worker: Worker, tmp_path: Path) -> None:
    assert drained(RemotePart(tmp_path, request_of(squares))) == local_batches(squares)


def test_tables_and_variables_go_with_the_dataset(worker: Worker, tmp_path: Path) -> None:
    def looked_up() -> tf.data.Dataset:
        keys, values = tf.constant([0, 1, 2], tf.int64), tf.constant([10, 20, 30], tf.int64)
        table = tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer(keys, values), -1)
        return tf.data.Dataset.range(6).map(table.lookup).batch(2)

    received = drained(RemotePart(tmp_path, request_of(looked_up)))
    assert np.frombuffer(b"".join(received), np.int64).tolist() == [10, 20, 30, -1, -1, -1]


def test_an_error_of_the_pipeline_reaches_the_run_unchanged(worker: Worker, tmp_path: Path) -> None:
    def failing() -> tf.data.Dataset:
        return tf.data.Dataset.range(4).map(
            lambda x: tf.debugging.check_numerics(1.0 / tf.cast(2 - x, tf.float32), "bad")
        )

    part = RemotePart(tmp_path, request_of(failing))
    with pytest.raises(tf.errors.InvalidArgumentError, match="bad"):
        drained(part)
    part.close()


def test_a_lost_worker_is_replaced_by_another(worker: Worker, tmp_path: Path) -> None:
    part = RemotePart(tmp_path, request_of(squares))
    batches = [part.next_batch(never)]
    worker.server.stop(None).wait()
    successor = Worker(tmp_path, token="another")
    whole = [batch[0].tobytes() for batch in batches if batch is not None] + drained(part)
    successor.server.stop(None)
    assert whole == local_batches(squares)


def test_closing_ends_a_part_whose_worker_never_came(tmp_path: Path) -> None:
    part = RemotePart(tmp_path, request_of(squares))
    part.close()
    assert part.next_batch(lambda: True) is None


@pytest.mark.parametrize("metadata", [(), ((TOKEN_KEY, ""),), ((TOKEN_KEY, "guess"),)])
def test_a_call_without_the_token_is_refused(worker: Worker, metadata: tuple[tuple[str, str], ...]) -> None:
    with grpc.insecure_channel(f"{LOOPBACK}:{worker.port}") as channel:
        answers = channel.unary_stream(BATCHES)(request_of(squares).encoded(), metadata=metadata)
        with pytest.raises(grpc.RpcError) as refusal:
            next(answers)
    assert refusal.value.code() is grpc.StatusCode.UNAUTHENTICATED


def test_only_this_user_can_read_the_announcement(worker: Worker, tmp_path: Path) -> None:
    path = worker_file(tmp_path, 0)
    assert path.stat().st_mode & 0o777 == 0o600
    about = read_announcement(path)
    assert about is not None
    assert about["target"].startswith("127.0.0.1:")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make another user's file")
def test_an_announcement_of_another_user_is_refused(tmp_path: Path) -> None:
    path = worker_file(tmp_path, 0)
    announce(path, {"target": "127.0.0.1:1", "token": "x", "pid": 1})
    os.chown(path, 65534, 65534)
    with pytest.raises(PermissionError, match="another user"):
        read_announcement(path)


def test_a_link_in_the_place_of_an_announcement_is_not_followed(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_text("{}")
    worker_file(tmp_path, 0).symlink_to(elsewhere)
    with pytest.raises(OSError):
        read_announcement(worker_file(tmp_path, 0))


def test_a_worker_on_one_machine_listens_on_loopback_only(worker: Worker) -> None:
    with socket.socket() as probe, pytest.raises(OSError):
        probe.settimeout(2)
        probe.connect((f"{LOOPBACK[:-1]}2", worker.port))
