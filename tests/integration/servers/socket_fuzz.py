"""Sends mutated bytes and calls to every server of ours: python socket_fuzz.py SECONDS [SEED].

The servers are a weight server, an input worker and `cs-system serve --ssh`. Callers without the secret send recorded
connections with changed bytes, and any call with any message; they get nothing. Some stop in the middle of a message
and stay connected. Callers with the secret send changed messages. After every round each server must answer a proper
call, in bounded memory.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import re
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import psutil
import tensorflow as tf

from cerebras_tensorflow.runtime.host import links
from cerebras_tensorflow.runtime.input_workers import chief
from cerebras_tensorflow.runtime.input_workers import protocol as input_protocol
from cerebras_tensorflow.runtime.weight_store import wire
from cerebras_tensorflow.runtime.weight_store.server import server_file
from cerebras_tensorflow.system import jobs, protocol, remote
from csrun.csctl.server import CSCTL
from tests.integration.checkpoints.saver_fuzz import mutated, mutated_json

TIMEOUT_S = 10.0
CALL_TIMEOUT_S = 1.0
ANSWER_S = 60.0
"""Time that a server has for a proper answer after an attack: streams without an end may occupy its threads a while."""

MAX_GROWTH_BYTES = 300 << 20
MOST_HELD = 40
"""Silent connections at a server at a time; each server keeps more than that."""
ROUND = 100
ODD_MESSAGES = 200
ODD_TEXTS = ["", "../../x", "/etc/passwd", "\0", "x" * 100_000, "%s%n", "' OR '1'='1", "jobs", "systems", "[" * 10_000]
ODD_TEXTS += [
    "{}",
    '{"meta": 1}',
    '{"meta": {"labels": []}}',
    '{"meta": {"labels": {"a": null}}}',
    "-1",
    "9" * 30,
    "\x1b[2J",
]
ROOT = Path(__file__).parents[3]
SYSTEMS = protocol.load(remote.PROTO)


class BusyError(Exception):
    """A server has not given a proper answer yet."""


@dataclass
class Target:
    """One server under attack.

    Attributes:
        name: For the counts.
        process: The server.
        port: Its TCP port.
        key: Name of the metadata with the secret; empty if it is no gRPC server.
        secret: The secret.
        calls: Full name of each method -> proper messages. Mutated, they are sent with and without the secret.
        asks: Makes a proper call; it raises if the answer is wrong.
        trusted: Methods to call with the secret.
        recorded: What proper clients without the secret send, as raw bytes.
        start_bytes: Its resident memory at the start.
        held: Connections that stay open after a part of a message.
    """

    name: str
    process: psutil.Process
    port: int
    key: str
    secret: str
    calls: dict[str, list[bytes]]
    asks: Callable[[], object]
    trusted: tuple[str, ...] = ()
    recorded: list[bytes] = field(default_factory=list)
    start_bytes: int = 0
    held: deque[socket.socket] = field(default_factory=deque)

    def check(self) -> None:
        """Check that the server lives, answers, and holds no more memory than it should."""
        deadline = time.monotonic() + ANSWER_S
        while True:
            assert self.process.is_running() and self.process.status() != psutil.STATUS_ZOMBIE, f"{self.name} is gone"
            try:
                self.asks()
                break
            except (BusyError, grpc.RpcError):
                if time.monotonic() > deadline:
                    raise
        size = self.process.memory_info().rss
        self.start_bytes = self.start_bytes or size
        assert size < self.start_bytes + MAX_GROWTH_BYTES, f"{self.name} has grown from {self.start_bytes} to {size}"

    def send(self, data: bytes) -> str:
        """Send raw bytes; return how the connection ended."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=TIMEOUT_S) as link:
            link.settimeout(0.02)
            try:
                link.sendall(data)
                link.shutdown(socket.SHUT_WR)
                received = 0
                while part := link.recv(65536):
                    received += len(part)
            except TimeoutError:
                return "left open"
            except OSError as error:
                return type(error).__name__
            return "closed" if received else "closed without an answer"

    def hold(self, data: bytes) -> str:
        """Send raw bytes and stay connected; close the oldest of too many such connections."""
        self.held.append(socket.create_connection(("127.0.0.1", self.port), timeout=TIMEOUT_S))
        with suppress(OSError):
            self.held[-1].sendall(data)
        if len(self.held) > MOST_HELD:
            self.held.popleft().close()
        return "held"

    def call(self, method: str, message: bytes, secret: str, timeout_s: float = CALL_TIMEOUT_S) -> str:
        """Make a gRPC call; return its status, or "OK" with an answer."""
        with grpc.insecure_channel(f"127.0.0.1:{self.port}") as channel:
            answers = channel.stream_stream(method)(iter([message]), metadata=((self.key, secret),), timeout=timeout_s)
            try:
                for _ in answers:
                    pass
            except grpc.RpcError as error:
                return str(error.code().name)
            return "OK"


def recorded(port: int, use: Callable[[int], object]) -> bytes:
    """Return what a client sends to a server: `use` is called with the port of a proxy."""
    sent = bytearray()
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def relay() -> None:
            with suppress(OSError):
                inner, _ = listener.accept()
                with inner, socket.create_connection(("127.0.0.1", port)) as outer:
                    back = threading.Thread(target=pump, args=(outer, inner, None), daemon=True)
                    back.start()
                    pump(inner, outer, sent)
                    outer.shutdown(socket.SHUT_RDWR)
                    back.join(TIMEOUT_S)

        def pump(source: socket.socket, sink: socket.socket, copy: bytearray | None) -> None:
            with suppress(OSError):
                while data := source.recv(65536):
                    if copy is not None:
                        copy.extend(data)
                    sink.sendall(data)

        thread = threading.Thread(target=relay, daemon=True)
        thread.start()
        with suppress(grpc.RpcError):
            use(listener.getsockname()[1])
        thread.join(TIMEOUT_S)
    assert sent
    return bytes(sent)


def grpc_client(method: str, message: bytes) -> Callable[[int], object]:
    """Return a client without a secret, for `recorded`."""

    def use(port: int) -> None:
        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
            for _ in channel.stream_stream(method)(iter([message]), timeout=CALL_TIMEOUT_S):
                pass

    return use


@contextmanager
def announced(words: list[str], path: Path, log: Path) -> Iterator[tuple[psutil.Process, dict[str, Any]]]:
    """A server process that announces itself in a file."""
    with open(log, "wb") as output:
        child = subprocess.Popen([sys.executable, "-m", *words], stdout=output, stderr=output, cwd=ROOT)
    try:
        while not path.exists():
            assert child.poll() is None, log.read_text()
            time.sleep(0.02)
        yield psutil.Process(child.pid), json.loads(path.read_text())
    finally:
        child.kill()
        child.wait()


def no_answer(waited_s: float) -> None:
    """End a request that waits.

    Raises:
        LinkEndedError: Always.
    """
    raise links.LinkEndedError(f"no answer for {waited_s} s")


def asked(port: int, secret: str, request: bytes) -> bytes:
    """Prove a secret to a weight server, send a request and return its answer."""
    with socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT_S) as link:
        if not links.prove(link, secret.encode(), wire.CHIEF, wire.SERVER, time.monotonic() + TIMEOUT_S):
            raise links.LinkEndedError("wrong secret")
        link.settimeout(CALL_TIMEOUT_S)
        links.send(link, request)
        with suppress(OSError):
            link.shutdown(socket.SHUT_WR)
        answer = links.Incoming(link, no_answer)
        return answer.read(np.empty(min(answer.size, 1 << 20), np.uint8)).tobytes()


class WeightServerTarget(Target):
    """A weight server: a method is the name of a kind of requests."""

    def call(self, method: str, message: bytes, secret: str, timeout_s: float = CALL_TIMEOUT_S) -> str:
        """Send a request of a kind; return how that ended, or "OK" with an answer."""
        del timeout_s
        try:
            asked(self.port, secret, bytes([wire.Kind[method]]) + message[1:])
        except links.LinkEndedError:
            return "closed"
        except links.OwnerFailedError:
            return "refused"
        return "OK"


@contextmanager
def weights(folder: Path) -> Iterator[list[Target]]:
    """A weight server that holds one weight."""
    words = ["cerebras_tensorflow.runtime.weight_store.server", str(folder), "0"]
    with announced(words, server_file(folder, 0), folder / "weights.log") as (process, about):
        port, secret = int(about["target"].rpartition(":")[2]), about["token"]
        content = bytes(range(200))

        def message(kind: wire.Kind, *place: int, part: bytes = b"") -> bytes:
            header = wire.HEADER.pack(kind, *place, 0, 0.0) + links.ANSWER.pack(False, len(part))
            return header + (links.ANSWER.pack(False, len(part)) + part if part else b"")

        sizes = json.dumps({"0": len(content)}).encode()
        number = int.from_bytes(asked(port, secret, message(wire.Kind.OPEN, 0, 0, 0, 0, 0, part=sizes)), "little")
        whole, other = (number, 0, 0, len(content), 0), (number + 1, 0, 0, len(content), 0)
        asked(port, secret, message(wire.Kind.WRITE, *whole, part=content))

        def asks() -> None:
            try:
                assert asked(port, secret, message(wire.Kind.READ, *whole)) == content
            except links.LinkEndedError as error:
                raise BusyError from error

        odd = itertools.product((number, number + 1), (0, 1), *[(0, 1, 199, 201, 2**63, 2**64 - 1)] * 2, (0, 1))
        kinds = (wire.Kind.HOLD, wire.Kind.RELEASE, wire.Kind.END_HOLD, wire.Kind.READ)
        calls = {kind.name: [message(kind, *place) for place in (whole, other, *odd)] for kind in kinds}
        calls["WRITE"] = [message(wire.Kind.WRITE, *other, part=content)]
        rows = (3).to_bytes(8, "little") * 2
        calls["GATHER"] = [message(wire.Kind.GATHER, number, 0, 10, 2, 0, part=rows)]
        calls["CLOSE"] = [message(wire.Kind.CLOSE, *other)]
        calls["OPEN"] = [message(wire.Kind.OPEN, 0, 0, 0, 0, 0, part=b'{"0": 100, "7": 8}')]
        # With the secret a caller may overwrite and close the weight that `asks` reads.
        trusted = ("OPEN", "READ", "GATHER", "HOLD", "RELEASE", "END_HOLD")
        raw = [bytes(64) + messages[0] for messages in calls.values()]
        yield [WeightServerTarget("weight server", process, port, "", secret, calls, asks, trusted, raw)]


@contextmanager
def inputs(folder: Path) -> Iterator[list[Target]]:
    """An input worker. With its secret it runs any graph, so all attacks come without."""
    words = ["cerebras_tensorflow.runtime.input_workers.process", str(folder), "0"]
    with announced(words, input_protocol.worker_file(folder, 0), folder / "inputs.log") as (process, about):
        target = Target(
            "input worker",
            process,
            int(about["target"].rpartition(":")[2]),
            input_protocol.TOKEN_KEY,
            about["token"],
            {input_protocol.BATCHES: [(2).to_bytes(8, "little") + b"{}", b""]},
            lambda: None,
        )

        with tf.Graph().as_default():
            numbers = tf.data.Dataset.range(3).batch(2).map(lambda x: (x,))
            request = chief.part_requests(numbers, 1)[0].encoded()

        def asks() -> None:
            # On a busy machine, to build and run the graph takes more than one second.
            if (end := target.call(input_protocol.BATCHES, request, about["token"], ANSWER_S)) != "OK":
                raise BusyError(end)

        target.asks = asks
        yield [target]


@contextmanager
def cluster(folder: Path) -> Iterator[list[Target]]:
    """`cs-system serve --ssh` with one running job, as two targets: the gRPC port and the ssh port."""
    home = folder / "home"
    password = folder / "password"
    password.write_text("correct horse")
    password.chmod(0o600)
    code = "import sys; from csrun.system_cli import main; sys.exit(main())"
    words = ["serve", "--listen", "127.0.0.1:0", "--ssh", "127.0.0.1:0", "--ssh-password-file", str(password)]
    os.environ["CEREBRAS_HOME"] = str(home)
    job = jobs.submit(home, "cs2-embedded", "pipelined", labels={"a": "1"})
    log = open(folder / "cluster.log", "wb")  # noqa: SIM115 - closed with the process
    child = subprocess.Popen(
        [sys.executable, "-c", code, *words], stdout=subprocess.PIPE, stderr=log, cwd=ROOT, text=True
    )
    try:
        assert child.stdout is not None
        ssh_port = int(re.search(r"-p (\d+)", child.stdout.readline())[1])  # type: ignore[index]
        port = int(re.search(r" on \S+:(\d+)\. ", child.stdout.readline())[1])  # type: ignore[index]
        secret = (home / "serve_token").read_text().strip()
        rng = random.Random(1)
        api, systems = CSCTL.messages, SYSTEMS.messages
        export = api.CreateLogExportRequest(name=job.id)
        patch = {"meta": {"labels": {"a": "2"}}}
        requests = {
            "CsCtlV1/Get": api.GetRequest(type="jobs", name=job.id, accept=1, representation=2),
            "CsCtlV1/Patch": api.PatchRequest(type="jobs", name=job.id, body=json.dumps(patch).encode()),
            "CsCtlV1/ListResourceTypes": api.ListResourceTypesRequest(),
            "CsCtlV1/CreateLogExport": export,
            "CsCtlV1/GetLogExport": api.GetLogExportRequest(export_id="0" * 16),
            "CsCtlV1/DownloadLogExport": api.DownloadLogExportRequest(export_id="0" * 16, page_token="12"),
            "CsCtlV1/CancelJobV2": api.CancelJobRequest(job_id=job.id),
            "Systems/Show": systems.ShowRequest(),
            "Systems/Run": systems.RunRequest(begin=systems.Begin(execution_mode="pipelined", labels={"a": "b"})),
        }
        prefix = CSCTL.services["CsCtlV1"].full_name.removesuffix("CsCtlV1")
        own = SYSTEMS.services["Systems"].full_name.removesuffix("Systems")
        calls = {
            f"/{own if name.startswith('Systems') else prefix}{name}": [
                message.SerializeToString(),
                *(with_odd_fields(message, rng) for _ in range(ODD_MESSAGES)),
            ]
            for name, message in requests.items()
        }
        process = psutil.Process(child.pid)
        (show,) = [name for name in calls if name.endswith("Show")]
        target = Target("cs-system serve", process, port, "auth-token", secret, calls, lambda: None)
        # A caller with the secret may cancel the job.
        target.trusted = tuple(name for name in calls if not name.endswith(("CancelJobV2", "Run")))

        def asks() -> None:
            if (end := target.call(show, b"", secret)) != "OK":
                raise BusyError(end)
            assert not job.record.is_cancel_requested

        def greets() -> None:
            with socket.create_connection(("127.0.0.1", ssh_port), timeout=TIMEOUT_S) as link:
                assert link.recv(8) == b"SSH-2.0-"

        target.asks = asks
        yield [target, Target("ssh", process, ssh_port, "", "", {}, greets)]
    finally:
        child.kill()
        child.communicate()
        log.close()
        job.finish(jobs.SUCCEEDED)


def record(target: Target) -> None:
    """Record what proper clients send to a server, if that is not known."""
    if target.recorded:
        return
    if target.calls:
        target.recorded = [
            recorded(target.port, grpc_client(name, message))
            for name, messages in target.calls.items()
            for message in messages[:1]
        ]
        return
    key_exchange = bytes(range(16)) + (10).to_bytes(4, "big") + b"curve25519" + bytes(40)
    packet = bytes([6, 20]) + key_exchange + bytes(6)
    target.recorded = [b"SSH-2.0-x\r\n" + len(packet).to_bytes(4, "big") + packet, b"SSH-2.0-OpenSSH_9.0\r\n"]


def with_odd_fields(message: Any, rng: random.Random) -> bytes:
    """Return a protobuf message in which some fields have odd values."""
    odd = type(message)()
    odd.CopyFrom(message)
    for descriptor in type(message).DESCRIPTOR.fields:
        if rng.random() < 0.5:
            continue
        if descriptor.type == descriptor.TYPE_MESSAGE:
            with suppress(AttributeError):  # a map
                getattr(odd, descriptor.name).MergeFromString(with_odd_fields(getattr(odd, descriptor.name), rng))
        elif descriptor.type in (descriptor.TYPE_STRING, descriptor.TYPE_BYTES):
            text = rng.choice(ODD_TEXTS)
            setattr(odd, descriptor.name, text if descriptor.type == descriptor.TYPE_STRING else text.encode())
        else:
            setattr(odd, descriptor.name, rng.choice([0, 1, 2, 2**31 - 1]))
    return bytes(odd.SerializeToString())


def changed(message: bytes, rng: random.Random) -> bytes:
    """Return a message with other bytes, with other JSON, or as it is."""
    if rng.random() < 0.3:
        return message
    if b"{" in message and rng.random() < 0.5:
        with suppress(IndexError):
            return mutated_json(message, rng)
    return mutated(message, rng) if rng.random() < 0.9 else rng.randbytes(rng.randrange(200))


def attack(target: Target, rng: random.Random) -> str:
    """Attack a server once; return how that ended.

    Raises:
        AssertionError: If a caller without the secret gets an answer.
    """
    kind = rng.choice(["bytes", "part", "without the secret", "with the secret"])
    if kind == "part":
        whole = rng.choice(target.recorded)
        return target.hold(whole[: rng.randrange(len(whole) + 1)])
    if kind == "bytes" or not target.calls or (kind == "with the secret" and not target.trusted):
        return f"bytes: {target.send(changed(rng.choice(target.recorded), rng))}"
    method = rng.choice(target.trusted if kind == "with the secret" else list(target.calls))
    message = changed(rng.choice(target.calls[method]), rng)
    if kind == "with the secret":
        return f"{kind}, {method.rpartition('/')[2]}: {target.call(method, message, target.secret)}"
    guess = rng.choice(["", target.secret[:-1], target.secret.upper(), "x" * rng.randrange(2000)])
    guess = "" if guess == target.secret else guess
    end = target.call(method, message, guess)
    assert end != "OK", f"{target.name} answered {method} without the secret"
    return f"{kind}: {end}"


def fuzz(folder: Path, seconds: float, seed: int, kinds: Sequence[Any] = (weights, inputs, cluster)) -> Counter[str]:
    """Attack servers in turn; return the count of each end."""
    rng, ends = random.Random(seed), Counter[str]()
    with ExitStack() as stack:
        targets: list[Target] = []
        for number, kind in enumerate(kinds):
            (folder / str(number)).mkdir()
            targets += stack.enter_context(kind(folder / str(number)))
        for target in targets:
            stack.callback(lambda held=target.held: [link.close() for link in held])
            record(target)
            target.check()
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            for target in targets:
                for _ in range(ROUND):
                    ends[f"{target.name}, {attack(target, rng)}"] += 1
                target.check()
    return ends


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        start_seed = int(sys.argv[2]) if len(sys.argv) > 2 else int(time.time())
        counts = fuzz(Path(scratch), float(sys.argv[1]), start_seed)
    print(f"seed {start_seed}: {sum(counts.values())} attacks, 0 accesses, all servers answered after every {ROUND}")
    for label, count in sorted(counts.items()):
        print(f"{count:7} {label}")
