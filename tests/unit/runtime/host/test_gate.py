"""The options of our gRPC servers and channels."""

from __future__ import annotations

from pathlib import Path

from grpc._cython import cygrpc

from cerebras_tensorflow.runtime.host import gate
from cerebras_tensorflow.runtime.input_workers import remote as input_workers
from csrun.serving import gate as of_systems


def test_grpc_knows_every_option_that_we_set() -> None:
    """gRPC ignores an option whose name it does not know."""
    options = [*gate.UNLIMITED, *gate.LIMITS, *input_workers.CHANNEL, *of_systems.OPTIONS]
    library = Path(cygrpc.__file__).read_bytes()
    assert [name for name, _ in options if name.encode() + b"\0" not in library] == []
