"""The chief's view of one input worker: a thread reads its batches ahead.

If a worker ends or stops answering, its wrapper starts a new one. The new worker continues with the first batch that
the chief does not have. Its batches are the same, because they depend only on the request.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import tensorflow as tf

from cerebras_tensorflow.errors import CerebrasError
from cerebras_tensorflow.logs import run_log
from cerebras_tensorflow.runtime.host.announcement import read_announcement
from cerebras_tensorflow.runtime.host.gate import UNLIMITED
from cerebras_tensorflow.runtime.host.network import LOOPBACK
from cerebras_tensorflow.runtime.input_workers.protocol import (
    BATCHES,
    INSIDE,
    PIPELINE_ERROR_KEY,
    TOKEN_KEY,
    PartRequest,
    decode_batch,
    replace_file,
    taken,
    work_of,
    worker_file,
)
from cerebras_tensorflow.runtime.input_workers.shared_memory import ChiefMemory
from cerebras_tensorflow.runtime.input_workers.speed import Work

START_TIMEOUT_S = 300.0
POLL_S = 0.1
MOST_ENDS = 5
"""If this many workers in a row end before the same batch, the part raises an error."""
AHEAD = 2
"""Number of batches of one worker that the chief reads ahead."""

_TIME_EVERY = 16
"""One of so many batches tells what the worker does: reading it takes time, too."""

CHANNEL = [
    *UNLIMITED,
    ("grpc.enable_http_proxy", 0),
    # Detect a worker that hangs or whose host is gone.
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.ping_timeout_ms", 10_000),  # gRPC's minute would delay the detection
    ("grpc.http2.max_pings_without_data", 0),
]

Batch = list[np.ndarray[Any, Any]]


@dataclass(frozen=True)
class WorkerAddress:
    """The address of an input worker.

    Attributes:
        target: IP address and port.
        token: The token that each call must send.
        pid: Its process.
    """

    target: str
    token: str
    pid: int


class RemotePart:
    """The batches of one input worker, in order. Final; `close` ends its thread.

    Args:
        folder: The folder of the launch, in which workers announce themselves.
        request: The part that the worker computes.
        worker: Number of the worker; by default the request's index.

    Attributes:
        work: What the worker does with its time; None: not known yet.
    """

    def __init__(self, folder: Path, request: PartRequest, worker: int | None = None) -> None:
        self._folder = folder
        self._request = request
        self._worker = request.index if worker is None else worker
        self.work: Work | None = None
        self._batches: queue.Queue[Batch | BaseException | None] = queue.Queue(AHEAD)
        self._closed = threading.Event()
        self._call: Any = None
        self._thread = threading.Thread(target=self._receive, name=f"input-worker-{self._worker}", daemon=True)
        self._thread.start()

    def next_batch(self, should_stop: Callable[[], bool]) -> Batch | None:
        """Return the next batch. None at the end of the data, or if `should_stop` returns True during the wait.

        Raises:
            tf.errors.OpError: If the pipeline raised this error in the worker.
            CerebrasError: If the worker ended and no other replaced it.
        """
        while not should_stop():
            try:
                item = self._batches.get(timeout=POLL_S)
            except queue.Empty:
                continue
            if isinstance(item, BaseException):
                raise item
            return item
        return None

    def close(self) -> None:
        """Stop receiving."""
        self._closed.set()
        call = self._call
        if call is not None:
            call.cancel()
        while self._thread.is_alive():
            try:
                self._batches.get_nowait()
            except queue.Empty:
                self._thread.join(POLL_S)

    def _receive(self) -> None:
        """Background thread: keep the error; the next call of `next_batch` raises it."""
        end: BaseException | None = None
        try:
            self._receive_from_each()
        except BaseException as error:  # noqa: BLE001 - `next_batch` raises it in the run's thread
            end = error
        self._put(end)

    def _receive_from_each(self) -> None:
        """Put all batches into the queue, from the worker and from those that replace it."""
        received, last, can_map = 0, None, True
        ends, ended_at = 0, -1
        while not self._closed.is_set():
            last = self._wait_for_worker(last)
            if last is None:
                return
            is_local = can_map and last.target.startswith(f"{LOOPBACK}:")
            try:
                for batch in self._batches_of(last, replace(self._request, first_batch=received, is_local=is_local)):
                    self._put(batch)
                    received += 1
                return
            except OSError as error:
                run_log.info("Input worker %d sends messages, not shared memory: %s.", self._worker, error)
                can_map, last = False, None
            except grpc.RpcError as error:
                if self._closed.is_set():
                    return
                self._check_worker_is_at_fault(error)
                ends, ended_at = (ends + 1 if received == ended_at else 1), received
                if ends == MOST_ENDS:
                    raise self._error(f"has ended {ends} times before batch {received} of its part") from error
                run_log.warning(
                    "Input worker %d (process %d) ended: %s. A new one continues after batch %d of its part.",
                    *(self._worker, last.pid, error.details(), received),
                )
                with suppress(OSError):  # on a full disk: a worker that has died is replaced anyway
                    replace_file(self._folder, self._worker).write_text(str(last.pid), encoding="ascii")

    def _batches_of(self, worker: WorkerAddress, request: PartRequest) -> Iterator[Batch]:
        """Yield the batches of one worker. Acknowledge each one when the caller asks for the next."""
        messages: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        messages.put(request.encoded())
        memory = ChiefMemory()
        with grpc.insecure_channel(worker.target, options=CHANNEL) as channel:
            stream = channel.stream_stream(BATCHES)
            self._call = stream(iter(messages.get, None), metadata=((TOKEN_KEY, worker.token),))
            if self._closed.is_set():  # `close` may have run before there was a call to cancel
                self._call.cancel()
            try:
                for number, message in enumerate(self._call):
                    if number % _TIME_EVERY == _TIME_EVERY - 1:
                        self.work = work_of(message)
                    yield decode_batch(message, memory)
                    messages.put(taken(memory.freed()))
            finally:
                messages.put(None)

    def _check_worker_is_at_fault(self, error: Any) -> None:
        """Raise an error that another worker would raise too: one of the pipeline, or a refused token."""
        kind = dict(error.trailing_metadata() or ()).get(PIPELINE_ERROR_KEY)
        if kind == INSIDE:
            raise _tensorflow_error(error.code())(None, None, error.details()) from error
        if kind is not None:
            raise self._error(f"cannot compute this input: {error.details()}") from error
        if error.code() is grpc.StatusCode.UNAUTHENTICATED:
            raise self._error("refuses the token of this launch") from error

    def _error(self, what: str) -> CerebrasError:
        number = self._worker
        return CerebrasError(
            f"input worker {number} {what}. Its log is {self._folder}/input-worker-{number}.log. Without input "
            "workers, the chief computes its input itself."
        )

    def _wait_for_worker(self, last: WorkerAddress | None) -> WorkerAddress | None:
        """Wait for a worker other than the last one. Return its address, or None if this part was closed.

        Raises:
            CerebrasError: If no such worker starts within START_TIMEOUT_S.
        """
        number = self._worker
        deadline = time.monotonic() + START_TIMEOUT_S
        while not self._closed.is_set():
            about = read_announcement(worker_file(self._folder, number))
            if about is not None and (last is None or about["token"] != last.token):
                return WorkerAddress(**about)
            if time.monotonic() > deadline:
                raise CerebrasError(
                    f"input worker {number} of {self._request.count} has not started within {START_TIMEOUT_S:.0f} s; "
                    f"its log is {self._folder}/input-worker-{number}.log"
                )
            self._closed.wait(POLL_S)
        return None

    def _put(self, item: Batch | BaseException | None) -> None:
        while not self._closed.is_set():
            try:
                self._batches.put(item, timeout=POLL_S)
                return
            except queue.Full:
                continue


def _tensorflow_error(code: grpc.StatusCode) -> Any:
    """Return TensorFlow's exception for a gRPC code. The names match, such as INVALID_ARGUMENT."""
    name = "".join(word.capitalize() for word in code.name.split("_"))
    return getattr(tf.errors, f"{name}Error")
