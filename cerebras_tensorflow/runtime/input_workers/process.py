"""One input worker: computes its part of the chief's input and streams the batches until it is killed.

csrun starts it with a folder and its index. It listens on loopback, or under Slurm on the launch's interface. It writes
a token to a file in the folder that only its user can read, and answers only callers that send this token.
"""

from __future__ import annotations

import os
import secrets
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import tensorflow as tf

from cerebras_tensorflow.runtime.host.announcement import announce, new_token
from cerebras_tensorflow.runtime.host.network import listen_address, target
from cerebras_tensorflow.runtime.input_workers.parts import part
from cerebras_tensorflow.runtime.input_workers.protocol import (
    PIPELINE_ERROR_KEY,
    SERVICE,
    TOKEN_KEY,
    UNLIMITED,
    PartRequest,
    encode_batch,
    worker_file,
)

THREADS = 4
OPTIONS = [
    *UNLIMITED,
    ("grpc.so_reuseport", 0),
    ("grpc.max_concurrent_streams", THREADS),
    # Allows the keepalive pings of a chief whose steps are long.
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 5_000),
]
_CODES = {code.value[0]: code for code in grpc.StatusCode}


class InputWorker:
    """Answers the chief. Final.

    Args:
        token: The token that the chief must send.
    """

    def __init__(self, token: str) -> None:
        self._token = token

    def batches(self, message: bytes, context: grpc.ServicerContext) -> Iterator[bytes]:
        """Yield the batches of a part."""
        shown = str(dict(context.invocation_metadata()).get(TOKEN_KEY, ""))
        if not secrets.compare_digest(shown.encode(), self._token.encode()):
            context.abort(grpc.StatusCode.UNAUTHENTICATED, "wrong token")
        try:
            yield from _computed(PartRequest.decoded(message), context)
        except tf.errors.OpError as error:
            # gRPC and TensorFlow number their error codes alike.
            context.set_trailing_metadata(((PIPELINE_ERROR_KEY, "1"),))
            context.abort(_CODES.get(error.error_code, grpc.StatusCode.UNKNOWN), error.message)


def start(address: str, token: str) -> tuple[grpc.Server, int]:
    """Return a server that listens on an IP address, and its port."""
    server = grpc.server(ThreadPoolExecutor(THREADS), options=OPTIONS, maximum_concurrent_rpcs=THREADS)
    handlers = {"Batches": grpc.unary_stream_rpc_method_handler(InputWorker(token).batches)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
    port = server.add_insecure_port(target(address, 0))
    server.start()
    return server, port


def _computed(request: PartRequest, context: grpc.ServicerContext) -> Iterator[bytes]:
    with tf.Graph().as_default() as graph:
        tf.graph_util.import_graph_def(tf.compat.v1.GraphDef.FromString(request.graph_def), name="")
        variant = graph.get_tensor_by_name(request.variant)
        dataset = part(variant, request.element_spec(), request.index, request.count, request.first_batch)
        iterator = tf.compat.v1.data.make_initializable_iterator(dataset)
        tensors = list(iterator.get_next())
        initializers = [graph.get_operation_by_name(name) for name in request.initializers]
        with tf.compat.v1.Session(graph=graph) as session:
            session.run(initializers)
            session.run(iterator.initializer)
            step = session.make_callable(tensors)
            while context.is_active():
                try:
                    values = step()
                except tf.errors.OutOfRangeError:
                    return
                yield encode_batch(values)


def main(argv: Sequence[str]) -> None:
    """Serve one worker's batches."""
    folder, index = Path(argv[0]), int(argv[1])
    address, token = listen_address(), new_token()
    server, port = start(address, token)
    announce(worker_file(folder, index), {"target": target(address, port), "token": token, "pid": os.getpid()})
    server.wait_for_termination()


if __name__ == "__main__":
    main(sys.argv[1:])
