"""An input worker in this process: authentication, batches, errors and replacement."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import grpc
import numpy as np
import pytest
import tensorflow as tf

from cerebras_tensorflow.errors import CerebrasError
from cerebras_tensorflow.runtime.host.announcement import announce, read_announcement
from cerebras_tensorflow.runtime.input_workers import chief, process, shared_memory, speed
from cerebras_tensorflow.runtime.input_workers.protocol import (
    BATCHES,
    INSIDE,
    PIPELINE_ERROR_KEY,
    TOKEN_KEY,
    PartRequest,
    replace_file,
    worker_file,
)
from cerebras_tensorflow.runtime.input_workers.remote import MOST_ENDS, RemotePart

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


def large() -> tf.data.Dataset:
    return tf.data.Dataset.range(9).map(lambda x: tf.fill([40_000], x)).batch(2)


def test_the_chief_continues_a_dataset_with_the_same_batches(
    worker: Worker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two iterators that share a dataset, only one changes over: the chief's second iterator would shuffle anew."""
    counts: dict[speed.Comparison, int] = {}

    def got(self: speed.Comparison, work: object) -> speed.Verdict | None:
        counts[self] = counts.get(self, 0) + 1
        return speed.Verdict(counts[self], 1.0, 0.1) if counts[self] == 3 else None

    monkeypatch.setattr(chief.Comparison, "got", got)
    with tf.Graph().as_default():
        tf.compat.v1.set_random_seed(1)
        dataset = chief.remote(squares(), tmp_path, [0], never)
        first, second = (tf.compat.v1.data.make_initializable_iterator(dataset) for _ in range(2))
        both = [first.get_next(), second.get_next()]
        with tf.compat.v1.Session() as session:
            session.run([first.initializer, second.initializer])
            pairs = [session.run(both) for _ in range(10)]
            with pytest.raises(tf.errors.OutOfRangeError):
                session.run(both)
    expected = local_batches(squares)
    assert [[value.tobytes() for value in pair] for pair in pairs] == [[batch, batch] for batch in expected]
    assert sorted(counts.values()) == [3, 10]


def test_large_batches_go_through_shared_memory_and_leave_no_file_open(worker: Worker, tmp_path: Path) -> None:
    part = RemotePart(tmp_path, request_of(large))
    first = part.next_batch(never)
    assert first is not None
    assert any("/memfd:batch" in line for line in Path("/proc/self/maps").read_text().splitlines())
    assert [first[0].tobytes(), *drained(part)] == local_batches(large)
    del first
    assert not [name for name in os.listdir("/proc/self/fd") if is_batch(name)]


def test_batches_that_the_caller_keeps_do_not_change(worker: Worker, tmp_path: Path) -> None:
    """More of them than the worker has files: the rest comes in messages. Then the files are used again."""

    def many() -> tf.data.Dataset:
        return tf.data.Dataset.range(50).map(lambda x: tf.fill([40_000], x)).batch(1)

    part, kept = RemotePart(tmp_path, request_of(many)), []
    for number in range(50):
        batch = part.next_batch(never)
        assert batch is not None
        if number < shared_memory.MOST_FILES + 9:
            kept.append(batch[0])
        elif number == 40:
            del kept[::2]
        assert [int(value.min()) for value in kept] == [int(value.max()) for value in kept]
        assert batch[0].min() == batch[0].max() == number
        del batch
    assert kept[0].min() == kept[0].max() == 1
    part.close()


def is_batch(descriptor: str) -> bool:
    try:
        return "memfd:batch" in os.readlink(f"/proc/self/fd/{descriptor}")
    except FileNotFoundError:
        return False


def test_a_chief_that_cannot_map_the_worker_s_memory_gets_whole_batches(
    worker: Worker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(self: shared_memory.ChiefMemory, **place: int) -> memoryview:
        raise PermissionError("no access")

    monkeypatch.setattr(shared_memory.ChiefMemory, "mapped", refused)
    assert drained(RemotePart(tmp_path, request_of(large))) == local_batches(large)


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


def test_a_long_error_of_the_pipeline_reaches_the_run_shortened(worker: Worker, tmp_path: Path) -> None:
    text = "begin " + "\u00e4" * 40_000 + " end"

    def failing() -> tf.data.Dataset:
        def fail(x: tf.Tensor) -> tf.Tensor:
            with tf.control_dependencies([tf.debugging.Assert(x < 2, [text])]):
                return tf.identity(x)

        return tf.data.Dataset.range(4).map(fail)

    part = RemotePart(tmp_path, request_of(failing))
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"(?s)assertion failed.*\[\.\.\.\]") as raised:
        drained(part)
    part.close()
    assert len(str(raised.value)) < 4000


def test_a_pipeline_that_no_worker_can_set_up_ends_the_run_with_the_reason(worker: Worker, tmp_path: Path) -> None:
    request = replace(request_of(squares), variant="missing:0")
    part = RemotePart(tmp_path, request)
    with pytest.raises(CerebrasError, match=r"input worker 0 cannot compute this input: KeyError.*missing.*Its log is"):
        drained(part)
    part.close()


def test_an_unauthenticated_error_of_the_pipeline_is_not_reported_as_a_wrong_token(tmp_path: Path) -> None:
    class Refusal(grpc.RpcError):  # type: ignore[misc]
        code = staticmethod(lambda: grpc.StatusCode.UNAUTHENTICATED)
        details = staticmethod(lambda: "no credentials for gs://bucket")
        trailing_metadata = staticmethod(lambda: ((PIPELINE_ERROR_KEY, INSIDE),))

    part = RemotePart(tmp_path, request_of(squares))
    part.close()
    with pytest.raises(tf.errors.UnauthenticatedError, match="no credentials"):
        part._check_worker_is_at_fault(Refusal())


def test_a_lost_worker_is_replaced_by_another(worker: Worker, tmp_path: Path) -> None:
    part = RemotePart(tmp_path, request_of(squares))
    batches = [part.next_batch(never)]
    worker.server.stop(None).wait()
    successor = Worker(tmp_path, token="another")
    whole = [batch[0].tobytes() for batch in batches if batch is not None] + drained(part)
    successor.server.stop(None)
    assert whole == local_batches(squares)


def test_workers_that_keep_ending_at_the_same_batch_end_the_run(tmp_path: Path) -> None:
    part = RemotePart(tmp_path, request_of(squares))
    for number in range(MOST_ENDS):  # nobody listens there
        announce(worker_file(tmp_path, 0), {"target": f"{LOOPBACK}:1", "token": f"token {number}", "pid": number})
        if number + 1 < MOST_ENDS:
            while not replace_file(tmp_path, 0).exists():
                assert part._thread.is_alive()
            replace_file(tmp_path, 0).unlink()
    with pytest.raises(CerebrasError, match="input worker 0 has ended 5 times before batch 0 of its part"):
        part.next_batch(never)
    part.close()


def test_closing_ends_a_part_whose_worker_never_came(tmp_path: Path) -> None:
    part = RemotePart(tmp_path, request_of(squares))
    part.close()
    assert part.next_batch(lambda: True) is None


@pytest.mark.parametrize("metadata", [(), ((TOKEN_KEY, ""),), ((TOKEN_KEY, "guess"),)])
def test_a_call_without_the_token_is_refused(worker: Worker, metadata: tuple[tuple[str, str], ...]) -> None:
    with grpc.insecure_channel(f"{LOOPBACK}:{worker.port}") as channel:
        answers = channel.stream_stream(BATCHES)(iter([request_of(squares).encoded()]), metadata=metadata)
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
