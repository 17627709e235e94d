"""A .proto file of ours as messages, client and server for gRPC.

The compiler runs in a process of its own: loaded into one that has TensorFlow, its copy of Abseil crashes both.
"""

from __future__ import annotations

import functools
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Service:
    """One service of a protocol: its full name, and for each method the two messages and whether they are streams."""

    full_name: str
    methods: dict[str, tuple[Any, Any, bool]]

    def stub(self, channel: Any) -> SimpleNamespace:
        """Return an object with the service's methods as calls over a channel."""
        calls = {}
        for name, (request, response, is_stream) in self.methods.items():
            kind = channel.stream_stream if is_stream else channel.unary_unary
            calls[name] = kind(f"/{self.full_name}/{name}", request.SerializeToString, response.FromString)
        return SimpleNamespace(**calls)

    def add_to(self, server: Any, servicer: object) -> None:
        """Let a gRPC server answer by the methods of the same names of an object."""
        import grpc

        handlers = {}
        for name, (request, response, is_stream) in self.methods.items():
            kind = grpc.stream_stream_rpc_method_handler if is_stream else grpc.unary_unary_rpc_method_handler
            handlers[name] = kind(getattr(servicer, name), request.FromString, response.SerializeToString)
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(self.full_name, handlers),))


@dataclass(frozen=True)
class Protocol:
    """A .proto file: `messages` has its messages and the values of its enumerations as attributes."""

    messages: Any
    services: dict[str, Service]


@functools.cache
def load(path: str) -> Protocol:
    """Return the protocol of a file, given by its path below the folder that holds our packages."""
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "descriptors"
        options = [f"-I{ROOT}", "--include_imports", f"--descriptor_set_out={target}"]
        subprocess.run([sys.executable, "-m", "grpc_tools.protoc", *options, path], check=True)
        files = descriptor_pb2.FileDescriptorSet.FromString(target.read_bytes()).file
    pool = descriptor_pool.DescriptorPool()
    for file in files:
        pool.Add(file)
    descriptor = pool.FindFileByName(path)
    found = SimpleNamespace()
    for name, message in descriptor.message_types_by_name.items():
        setattr(found, name, message_factory.GetMessageClass(message))
    for enumeration in descriptor.enum_types_by_name.values():
        for value in enumeration.values:
            setattr(found, value.name, value.number)
    services = {}
    own = next(file for file in files if file.name == path)
    for service in own.service:
        full_name = f"{own.package}.{service.name}"
        methods = {
            method.name: (
                message_factory.GetMessageClass(pool.FindMessageTypeByName(method.input_type.removeprefix("."))),
                message_factory.GetMessageClass(pool.FindMessageTypeByName(method.output_type.removeprefix("."))),
                method.client_streaming,
            )
            for method in service.method
        }
        services[service.name] = Service(full_name, methods)
    return Protocol(found, services)
