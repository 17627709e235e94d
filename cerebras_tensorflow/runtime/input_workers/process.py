"""One input worker: serves batches until it is killed. Started by csrun, with a folder and its index.

It is a tf.data service of its own, dispatcher and worker in one process: the order of its batches is then its own
affair, and what the others do cannot change it.
"""

from __future__ import annotations

import json
import os
import socket
import sys
from collections.abc import Sequence
from pathlib import Path

import tensorflow as tf

from cerebras_tensorflow.config import env
from cerebras_tensorflow.runtime.input_workers.chief import worker_file


def main(argv: Sequence[str]) -> None:
    """Serve one worker's batches."""
    folder, index = Path(argv[0]), int(argv[1])
    # Under Slurm the chief is on another node; on one machine nobody else needs to reach the worker.
    host = socket.gethostname() if env.read().is_under_slurm else "localhost"
    service = tf.data.experimental.service
    dispatcher = service.DispatchServer(service.DispatcherConfig(port=0))
    port = dispatcher.target.rsplit(":", 1)[1]
    worker = service.WorkerServer(
        service.WorkerConfig(dispatcher_address=f"localhost:{port}", worker_address=f"{host}:%port%")
    )
    path = worker_file(folder, index)
    draft = path.with_suffix(".tmp")
    draft.write_text(json.dumps({"target": f"grpc://{host}:{port}", "pid": os.getpid()}), encoding="utf-8")
    draft.replace(path)
    worker.join()


if __name__ == "__main__":
    main(sys.argv[1:])
