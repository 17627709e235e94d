"""Loads one of our .proto files as messages, client and server for gRPC.

Next to each .proto file is its compiled descriptor set (.binpb), which scripts/build_protos.py writes. So nothing is
compiled at run time. Descriptors go into a separate pool, because in the default pool of the process they could collide
with generated modules of other packages.
"""

from __future__ import annotations

import functools
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
        """Make a gRPC server answer with the methods of an object that have the same names."""
        import grpc

        handlers = {}
        for name, (request, response, is_stream) in self.methods.items():
            kind = grpc.stream_stream_rpc_method_handler if is_stream else grpc.unary_unary_rpc_method_handler
            handlers[name] = kind(getattr(servicer, name), request.FromString, response.SerializeToString)
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(self.full_name, handlers),))


@dataclass(frozen=True)
class Protocol:
    """A .proto file. `messages` has its messages and its enumeration values as attributes."""

    messages: Any
    services: dict[str, Service]


@functools.cache
def load(path: str) -> Protocol:
    """Return the protocol of a file.

    Args:
        path: Path of the .proto file, relative to the folder of our packages.
    """
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    files = descriptor_pb2.FileDescriptorSet.FromString((ROOT / path).with_suffix(".binpb").read_bytes()).file
    pool = descriptor_pool.DescriptorPool()
    for file in files:
        pool.Add(file)
    descriptor = pool.FindFileByName(path)
    names: dict[str, Any] = {
        name: message_factory.GetMessageClass(message) for name, message in descriptor.message_types_by_name.items()
    }
    for enumeration in descriptor.enum_types_by_name.values():
        names |= {value.name: value.number for value in enumeration.values}

    def message_class(full_name: str) -> Any:
        return message_factory.GetMessageClass(pool.FindMessageTypeByName(full_name.removeprefix(".")))

    services = {}
    own = next(file for file in files if file.name == path)
    for service in own.service:
        methods = {
            method.name: (
                message_class(method.input_type),
                message_class(method.output_type),
                method.client_streaming,
            )
            for method in service.method
        }
        services[service.name] = Service(f"{own.package}.{service.name}", methods)
    return Protocol(SimpleNamespace(**names), services)
