"""One input worker: computes its part of the chief's input and streams the batches until it is killed.

csrun starts it with a folder and its index. It listens on loopback, or under Slurm on the launch's interface. It writes
a token to a file in the folder that only its user can read, and answers only callers that send this token.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import tensorflow as tf

from cerebras_tensorflow.runtime.host.announcement import announce, new_token
from cerebras_tensorflow.runtime.host.gate import LIMITS, UNLIMITED, TokenGate
from cerebras_tensorflow.runtime.host.network import listen_address, target
from cerebras_tensorflow.runtime.input_workers.parts import part
from cerebras_tensorflow.runtime.input_workers.protocol import (
    INSIDE,
    OUTSIDE,
    PIPELINE_ERROR_KEY,
    SERVICE,
    TOKEN_KEY,
    PartRequest,
    encode_batch,
    freed_in,
    shortened,
    worker_file,
)
from cerebras_tensorflow.runtime.input_workers.shared_memory import WorkerMemory
from cerebras_tensorflow.runtime.input_workers.speed import WorkClock

THREADS = 4
WINDOW = 2
"""Largest number of batches that a worker has sent and the chief has not taken yet."""

_CODES = {code.value[0]: code for code in grpc.StatusCode}


def batches(messages: Iterator[bytes], context: Any) -> Iterator[bytes]:
    """Yield the batches of a part: WINDOW batches at once, then one more for each batch that the chief takes.

    If the pipeline fails, the chief gets the error and its message.
    """
    try:
        yield from _computed(PartRequest.decoded(next(messages, b"")), messages)
    except Exception as error:  # another worker would fail at the same batch
        if not context.is_active():  # the chief has ended the call
            raise
        traceback.print_exc()  # the worker's log gets the whole traceback
        code, kind, text = grpc.StatusCode.INTERNAL, OUTSIDE, f"{type(error).__name__}: {error}"
        if isinstance(error, tf.errors.OpError):
            # gRPC and TensorFlow number their error codes alike.
            code, kind, text = _CODES.get(error.error_code, grpc.StatusCode.UNKNOWN), INSIDE, error.message
        context.set_trailing_metadata(((PIPELINE_ERROR_KEY, kind),))
        context.abort(code, shortened(text))


def start(address: str, token: str) -> tuple[grpc.Server, int]:
    """Return a server that listens on an IP address, and its port."""
    server = grpc.server(
        ThreadPoolExecutor(THREADS), options=[*UNLIMITED, *LIMITS], interceptors=[TokenGate(TOKEN_KEY, token)]
    )
    handlers = {"Batches": grpc.stream_stream_rpc_method_handler(batches)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
    port = server.add_insecure_port(target(address, 0))
    server.start()
    return server, port


def _computed(request: PartRequest, taken: Iterator[bytes]) -> Iterator[bytes]:
    """Yield a message for each batch of a part."""
    with tf.Graph().as_default() as graph:
        tf.graph_util.import_graph_def(tf.compat.v1.GraphDef.FromString(request.graph_def), name="")
        variant = graph.get_tensor_by_name(request.variant)
        dataset = part(variant, request.element_spec(), request.index, request.count, request.first_batch)
        # Compute the next batch while one is sent.
        iterator = tf.compat.v1.data.make_initializable_iterator(dataset.prefetch(1))
        tensors = list(iterator.get_next())
        initializers = [graph.get_operation_by_name(name) for name in request.initializers]
        with tf.compat.v1.Session(graph=graph) as session:
            session.run(initializers)
            session.run(iterator.initializer)
            step = session.make_callable(tensors)
            yield from _sent(step, request.is_local, taken)


def _sent(step: Callable[[], list[Any]], is_local: bool, taken: Iterator[bytes]) -> Iterator[bytes]:
    """Yield a message for each batch of a step. The files with batches stay open until the chief has taken all."""
    num_sent = 0
    clock = WorkClock()
    with WorkerMemory() as memory:
        while (values := _next(step, clock)) is not None:
            if num_sent == WINDOW:
                if not _is_taken(memory, taken):
                    return
                num_sent -= 1
            work = clock.work()
            with clock.sending():
                message = encode_batch(values, memory if is_local else None, work)
            num_sent += 1
            yield message
        while num_sent and _is_taken(memory, taken):
            num_sent -= 1


def _next(step: Callable[[], list[Any]], clock: WorkClock) -> list[Any] | None:
    """Return the next batch; None at the end of the data."""
    try:
        with clock.computing():
            return step()
    except tf.errors.OutOfRangeError:
        return None


def _is_taken(memory: WorkerMemory, taken: Iterator[bytes]) -> bool:
    """Wait until the chief has taken the oldest batch. Return False if the chief is gone."""
    message = next(taken, None)
    if message is not None:
        memory.free(freed_in(message))
    return message is not None


def main(argv: Sequence[str]) -> None:
    """Serve one worker's batches."""
    folder, index = Path(argv[0]), int(argv[1])
    address, token = listen_address(), new_token()
    server, port = start(address, token)
    announce(worker_file(folder, index), {"target": target(address, port), "token": token, "pid": os.getpid()})
    server.wait_for_termination()


if __name__ == "__main__":
    main(sys.argv[1:])
