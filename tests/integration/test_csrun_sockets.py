"""All sockets of a launch and of `cs-system serve` listen on loopback only and require the secret."""

from __future__ import annotations

import json
import os
import queue
import signal
import socket
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import grpc
import psutil
import pytest

from cerebras_tensorflow.runtime.host.gate import MAX_CONNECTIONS
from cerebras_tensorflow.runtime.input_workers import process as input_worker
from cerebras_tensorflow.runtime.input_workers import protocol
from cerebras_tensorflow.runtime.weight_store import server as weight_server
from cerebras_tensorflow.system import jobs

NOBODY = 65534
LISTEN = psutil.CONN_LISTEN
TIMEOUT_S = 10

SCRIPT = """
import time
import tensorflow as tf
from cerebras_tensorflow.runtime.input_workers import chief
from cerebras_tensorflow.runtime.weight_store import remote

tf.compat.v1.disable_eager_execution()
remote.start_weight_servers()
dataset = tf.data.Dataset.range(1000).map(lambda x: x + 1).batch(7).repeat()
iterator = tf.compat.v1.data.make_initializable_iterator(chief.distributed(dataset))
batch = iterator.get_next()
with tf.compat.v1.Session() as session:
    session.run(iterator.initializer)
    session.run(batch)
    print("serving", flush=True)
    while True:
        session.run(batch)
        time.sleep(0.1)
"""
UNARY = ("Open", "Hold", "Release", "EndHold", "Close", "Stay")
STREAMS = ("Read", "Gather")


@pytest.fixture
def launch(home: Path, argv: Callable[..., list[str]]) -> Iterator[subprocess.Popen[str]]:
    """A launch whose input workers and weight servers serve."""
    environ = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    options = ("--executor", "embedded", "--input-workers", "1", "--weight-servers", "1")
    words = argv("csrun_wse", *options, "python", "-c", SCRIPT)
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environ) as child:
        assert child.stdout is not None
        lines = []
        for line in child.stdout:
            lines.append(line)
            if line.strip() == "serving":
                break
        else:
            raise AssertionError("".join(lines))
        yield child
        child.send_signal(signal.SIGTERM)
        child.communicate(timeout=120)


def listening(root: subprocess.Popen[str]) -> list[tuple[str, int]]:
    """The addresses on which a process and its descendants listen."""
    tree = [psutil.Process(root.pid), *psutil.Process(root.pid).children(recursive=True)]
    connections = [connection for process in tree for connection in process.net_connections("inet")]
    # gRPC listens on the IPv6 form of an IPv4 address.
    return [(one.laddr.ip.removeprefix("::ffff:"), one.laddr.port) for one in connections if one.status == LISTEN]


def refusal(call: Callable[[], object]) -> grpc.StatusCode:
    with pytest.raises(grpc.RpcError) as error:
        call()
    return error.value.code()


def test_a_launch_listens_on_loopback_only_and_requires_its_token(launch: subprocess.Popen[str], home: Path) -> None:
    folder = jobs.job_folder(home, jobs.listed(home)[0].id)
    names = ("input-worker", "weight-server")
    announced = {name: json.loads((folder / f"{name}-0.json").read_text())["target"] for name in names}
    addresses = listening(launch)
    assert {ip for ip, _ in addresses} == {"127.0.0.1"}
    assert sorted(f"{ip}:{port}" for ip, port in addresses) == sorted(announced.values())
    for key, token in (("other", "x"), (protocol.TOKEN_KEY, "guess"), (weight_server.TOKEN_KEY, "")):
        shown = ((key, token),)
        with grpc.insecure_channel(announced["input-worker"]) as channel:
            batches = channel.unary_stream(protocol.BATCHES)
            answers = batches(b"", metadata=shown, timeout=TIMEOUT_S)
            assert refusal(lambda answers=answers: next(answers)) is grpc.StatusCode.UNAUTHENTICATED
        with grpc.insecure_channel(announced["weight-server"]) as channel:
            path = f"/{weight_server.SERVICE}/"
            for name in UNARY:
                call = channel.unary_unary(path + name)
                code = refusal(lambda call=call, shown=shown: call(b"{}", metadata=shown, timeout=TIMEOUT_S))
                assert code is grpc.StatusCode.UNAUTHENTICATED
            for name in STREAMS:
                answers = channel.unary_stream(path + name)(b"", metadata=shown, timeout=TIMEOUT_S)
                assert refusal(lambda answers=answers: next(answers)) is grpc.StatusCode.UNAUTHENTICATED
            write = channel.stream_unary(path + "Write")
            code = refusal(lambda write=write, shown=shown: write(iter([b""]), metadata=shown, timeout=TIMEOUT_S))
            assert code is grpc.StatusCode.UNAUTHENTICATED


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another user")
def test_another_user_cannot_read_files_of_a_launch(launch: subprocess.Popen[str], home: Path) -> None:
    folder = jobs.job_folder(home, jobs.listed(home)[0].id)
    # Open the parent folders, which pytest made, so that only our folder's permissions protect the files.
    for parent in (home, *home.parents):
        if parent.stat().st_uid == os.geteuid() and parent != Path("/"):
            parent.chmod(parent.stat().st_mode | 0o055)
    paths = [folder, *folder.rglob("*"), home / "jobs.sqlite"]
    assert len(paths) > 4
    for path in paths:
        reader = ["ls", str(path)] if path.is_dir() else ["cat", str(path)]
        done = subprocess.run(reader, capture_output=True, text=True, user=NOBODY, group=NOBODY, cwd="/")
        assert "Permission denied" in done.stderr, path


@pytest.mark.parametrize(
    ("module", "key", "method"),
    [
        (input_worker, protocol.TOKEN_KEY, protocol.BATCHES),
        (weight_server, weight_server.TOKEN_KEY, f"/{weight_server.SERVICE}/Open"),
    ],
)
def test_silent_calls_without_the_token_block_nobody(module: Any, key: str, method: str) -> None:
    server, port = module.start("127.0.0.1", "secret")
    never: queue.SimpleQueue[None] = queue.SimpleQueue()
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        silent = [channel.stream_stream(method)(iter(never.get, None)) for _ in range(4 * module.THREADS)]
        call = channel.unary_unary(method)
        # The server has read the message and found it wrong.
        code = refusal(lambda: call(b"x", metadata=((key, "secret"),), timeout=TIMEOUT_S))
        assert code in (grpc.StatusCode.INTERNAL, grpc.StatusCode.INVALID_ARGUMENT)
        assert {refusal(lambda one=one: next(one)) for one in silent} == {grpc.StatusCode.UNAUTHENTICATED}
        for _ in silent:
            never.put(None)
    server.stop(None)


@pytest.mark.parametrize("module", [input_worker, weight_server])
def test_a_server_closes_connections_beyond_its_limit(module: Any) -> None:
    server, port = module.start("127.0.0.1", "secret")
    with ExitStack() as stack:
        links = [stack.enter_context(socket.create_connection(("127.0.0.1", port))) for _ in range(MAX_CONNECTIONS + 9)]
        for link in links:
            link.settimeout(TIMEOUT_S)
        first = [link.recv(1) for link in links]  # HTTP/2 settings, or the end
        assert first.count(b"") == 9
    server.stop(None)
