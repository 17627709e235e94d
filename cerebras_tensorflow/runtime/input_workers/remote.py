"""The chief's view of one input worker: a thread reads its batches ahead.

If a worker ends or stops answering, its wrapper starts a new one. The new worker continues with the first batch that
the chief does not have. Its batches are the same, because they depend only on the request.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import tensorflow as tf

from cerebras_tensorflow.errors import CerebrasError
from cerebras_tensorflow.logs import run_log
from cerebras_tensorflow.runtime.host.announcement import read_announcement
from cerebras_tensorflow.runtime.input_workers.protocol import (
    BATCHES,
    PIPELINE_ERROR_KEY,
    TOKEN_KEY,
    UNLIMITED,
    PartRequest,
    decode_batch,
    replace_file,
    worker_file,
)

START_TIMEOUT_S = 300.0
POLL_S = 0.1
AHEAD = 2
"""Number of batches of one worker that the chief reads ahead."""

CHANNEL = [
    *UNLIMITED,
    ("grpc.enable_http_proxy", 0),
    # Detect a worker that hangs or whose host is gone.
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 10_000),
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
    """

    def __init__(self, folder: Path, request: PartRequest) -> None:
        self._folder = folder
        self._request = request
        self._batches: queue.Queue[Batch | BaseException | None] = queue.Queue(AHEAD)
        self._closed = threading.Event()
        self._call: Any = None
        self._thread = threading.Thread(target=self._receive, name=f"input-worker-{request.index}", daemon=True)
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
        received, last = 0, None
        while not self._closed.is_set():
            last = self._wait_for_worker(last)
            if last is None:
                return
            try:
                with grpc.insecure_channel(last.target, options=CHANNEL) as channel:
                    request = replace(self._request, first_batch=received).encoded()
                    self._call = channel.unary_stream(BATCHES)(request, metadata=((TOKEN_KEY, last.token),))
                    if self._closed.is_set():  # `close` may have looked for the call before there was one
                        self._call.cancel()
                    for message in self._call:
                        self._put(decode_batch(message))
                        received += 1
                return
            except grpc.RpcError as error:
                if self._closed.is_set():
                    return
                self._check_worker_is_at_fault(error)
                run_log.warning(
                    "Input worker %d (process %d) ended: %s. A new one continues after batch %d of its part.",
                    *(self._request.index, last.pid, error.details(), received),
                )
                replace_file(self._folder, self._request.index).write_text(str(last.pid), encoding="ascii")

    def _check_worker_is_at_fault(self, error: Any) -> None:
        """Raise an error that another worker would raise too: one of the pipeline, or a refused token."""
        if error.code() is grpc.StatusCode.UNAUTHENTICATED:
            raise CerebrasError(f"input worker {self._request.index} refuses the token of this launch") from error
        if PIPELINE_ERROR_KEY in dict(error.trailing_metadata() or ()):
            raise _tensorflow_error(error.code())(None, None, error.details()) from error

    def _wait_for_worker(self, last: WorkerAddress | None) -> WorkerAddress | None:
        """Wait for a worker other than the last one. Return its address, or None if this part was closed.

        Raises:
            CerebrasError: If no such worker starts within START_TIMEOUT_S.
        """
        index = self._request.index
        deadline = time.monotonic() + START_TIMEOUT_S
        while not self._closed.is_set():
            about = read_announcement(worker_file(self._folder, index))
            if about is not None and (last is None or about["token"] != last.token):
                return WorkerAddress(**about)
            if time.monotonic() > deadline:
                raise CerebrasError(
                    f"input worker {index} of {self._request.count} has not started within {START_TIMEOUT_S:.0f} s; "
                    f"its log is {self._folder}/input-worker-{index}.log"
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
