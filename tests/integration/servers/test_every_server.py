"""Every socket of a run on several CSX and of `cs-system serve`: who listens, and what another user gets there."""

from __future__ import annotations

import itertools
import json
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from cerebras_tensorflow.system import jobs

# A run on 2 CSX, with its weights on weight servers and its input from an input worker. It trains until a signal.
RUN = """
import sys
import tensorflow as tf
from cerebras_tensorflow import CerebrasEstimator, CSConfig, CSRunConfig
v1 = tf.compat.v1

def model_fn(features, labels, mode, params):
    weights = [v1.get_variable(name, [8, 8]) for name in "abcd"]
    x = features
    for weight in weights:
        x = tf.tanh(x @ weight)
    loss = tf.reduce_mean(tf.square(x))
    step = v1.train.get_or_create_global_step()
    return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=v1.train.AdamOptimizer().minimize(loss, step))

def input_fn(params):
    numbers = tf.data.Dataset.range(1 << 40).map(lambda x: (tf.fill([8], tf.cast(x, tf.float32)), x))
    return numbers.batch(4, drop_remainder=True)

class Steps(tf.estimator.SessionRunHook):
    def after_run(self, context, values):
        print("a step", flush=True)

cs = CSConfig(num_csx=2, micro_batch_size=2, min_stream_bytes=0, weight_store="servers")
config = CSRunConfig(cs_config=cs, tf_random_seed=1, save_checkpoints_steps=1 << 30)
CerebrasEstimator(model_fn, sys.argv[1], config=config).train(input_fn, hooks=[Steps()])
"""

# Says what each server answers to bytes that know no secret: nothing, noise, HTTP/2, our own protocol, its own echo.
ATTACK = """
import json, os, socket, sys
from concurrent.futures import ThreadPoolExecutor
import grpc
from cerebras_tensorflow.runtime.input_workers import protocol
from cerebras_tensorflow.runtime.weight_store.wire import Kind, Request

METHODS = [protocol.BATCHES, "/cluster.cluster_mgmt_pb.csctl.CsCtlV1/Get", "/any.Service/Method"]
HTTP2 = b"PRI * HTTP/2.0\\r\\n\\r\\nSM\\r\\n\\r\\n"
BYTES = [b"", b"\\0" * 5000, bytes(range(256)) * 40, HTTP2 + b"\\0" * 9, (1).to_bytes(8, "little") + b"x" * 96, None]
BYTES += [bytes(64) + Request(kind, 1).to_bytes() + bytes(18) for kind in Kind]  # of a weight server, without a proof

def talk(link, content):
    answer = b""
    try:
        if content:
            link.sendall(content)
        while part := link.recv(4096):
            answer += part
            if content is None:
                link.sendall(part)
            if len(answer) > 100_000:
                break
    except OSError:
        pass
    return answer.hex()

def inet(address):
    answers = []
    for content in BYTES:
        with socket.create_connection(address) as link:
            link.settimeout(2)
            answers.append(talk(link, content))
    codes = []
    for method in METHODS:
        for metadata in ((), ((protocol.TOKEN_KEY, "x"), ("authorization", "Bearer x"))):
            with grpc.insecure_channel("%s:%d" % tuple(address)) as channel:
                try:
                    channel.unary_unary(method)(b"{}", metadata=metadata, timeout=5)
                    codes.append("OK")
                except grpc.RpcError as error:
                    codes.append(error.code().name)
    return answers, codes

def unix(kind, path):
    try:
        with socket.socket(socket.AF_UNIX, kind) as link:
            link.settimeout(2)
            link.connect("\\0" + path[1:] if path.startswith("@") else path)
            for content in BYTES:
                if content:
                    link.send(content[:2000])
            return "connected"
    except OSError as error:
        return type(error).__name__

def can_read(path):
    try:
        return bool(os.listdir(path) if os.path.isdir(path) else open(path, "rb").read())
    except PermissionError:
        return False

def attack():
    found = json.loads(sys.stdin.read())
    with ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(inet, found["inet"]))
    files = [path for path in found["files"] if can_read(path)]
    print(json.dumps({"inet": answers, "unix": [unix(*one) for one in found["unix"]], "files": files}))
"""
ACCEPTS = 0x10000  # __SO_ACCEPTCON in the kernel's flags: the socket listens
DATAGRAM = 2


def tree(root: subprocess.Popen[str]) -> list[psutil.Process]:
    return [psutil.Process(root.pid), *psutil.Process(root.pid).children(recursive=True)]


def listening(processes: list[psutil.Process]) -> list[tuple[str, int]]:
    """The TCP addresses on which processes listen, and the UDP addresses that they have bound."""
    found = [one for process in processes for one in process.net_connections("inet")]
    found = [one for one in found if one.status == psutil.CONN_LISTEN or (one.status == "NONE" and not one.raddr)]
    # gRPC listens on the IPv6 form of an IPv4 address.
    return sorted({(one.laddr.ip.removeprefix("::ffff:"), one.laddr.port) for one in found})


def unix_sockets(processes: list[psutil.Process]) -> list[tuple[int, str]]:
    """The kind and path of each Unix socket of processes that others can address; @ begins an abstract one."""
    inodes = set()
    for process in processes:
        for descriptor in Path(f"/proc/{process.pid}/fd").iterdir():
            try:
                inodes.update(re.findall(r"socket:\[(\d+)\]", os.readlink(descriptor)))
            except OSError:
                continue  # closed meanwhile
    found = []
    for line in Path("/proc/net/unix").read_text().splitlines()[1:]:
        _, _, _, flags, kind, _, inode, *path = line.split()
        if inode in inodes and path and (int(flags, 16) & ACCEPTS or int(kind, 16) == DATAGRAM):
            found.append((int(kind, 16), path[0]))
    return sorted(found)


@contextmanager
def started(words: list[str], until: str, home: Path) -> Iterator[subprocess.Popen[str]]:
    environ = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "CEREBRAS_HOME": str(home)}
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environ) as child:
        try:
            assert child.stdout is not None
            lines = []
            for line in child.stdout:
                lines.append(line)
                if re.search(until, line):
                    break
            else:
                raise AssertionError("".join(lines))
            yield child
        finally:
            child.send_signal(signal.SIGTERM)
            child.communicate(timeout=120)


@pytest.fixture
def processes(home: Path, argv: Callable[..., list[str]], tmp_path: Path) -> Iterator[list[subprocess.Popen[str]]]:
    """A run and a server; each serves."""
    options = ("--executor", "embedded", "--input-workers", "1", "--weight-servers", "1")
    (tmp_path / "run.py").write_text(RUN)
    run = argv("csrun_wse", *options, "python-ws", str(tmp_path / "run.py"), str(tmp_path / "model"))
    keys = tmp_path / "admin"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(keys)], check=True)
    ssh = ("--ssh", "127.0.0.1:0", "--ssh-admin-keys", f"{keys}.pub")
    serve = argv("cs-system", "serve", "--listen", "127.0.0.1:0", *ssh)
    with started(serve, "^Serving", home) as server, started(run, "a step", home) as running:
        yield [running, server]


@pytest.mark.skipif(shutil.which("ssh-keygen") is None, reason="needs OpenSSH's client: apt-get install openssh-client")
def test_another_user_gets_nothing_from_any_socket_or_file(
    processes: list[subprocess.Popen[str]], home: Path, tmp_path: Path, as_nobody: Callable[..., Any]
) -> None:
    pytest.importorskip("asyncssh")
    found = [process for root in processes for process in tree(root)]
    addresses, sockets = listening(found), unix_sockets(found)
    assert {ip for ip, _ in addresses} == {"127.0.0.1"}
    # An input worker, a weight server, two CSX, csctl's server and the ssh server.
    assert len(addresses) >= 6
    folder = jobs.job_folder(home, jobs.listed(home)[0].id)
    files = [folder, *folder.rglob("*"), home / "jobs.sqlite", home / "serve_token"]
    home.chmod(home.stat().st_mode | 0o055)  # so that only the permissions of the files in it protect them
    attack = as_nobody(ATTACK)
    words = {"inet": addresses, "unix": sockets, "files": [str(path) for path in files]}
    output, errors = attack.communicate(json.dumps(words), timeout=300)
    assert attack.returncode == 0, errors
    result = json.loads(output)
    assert result["files"] == []
    secrets = [(home / "serve_token").read_bytes().strip(), (tmp_path / "model" / "csx" / "secret").read_bytes()]
    for name in ("input-worker", "weight-server"):
        secrets.append(json.loads((folder / f"{name}-0.json").read_text())["token"].encode())
    for address, (answers, codes) in zip(addresses, result["inet"], strict=True):
        assert not [secret for secret in secrets for answer in answers if secret in bytes.fromhex(answer)], address
        # A server that is no gRPC server ends the connection.
        assert {"UNAUTHENTICATED", "UNAVAILABLE"} >= set(codes), (address, codes)
    for (_, path), outcome in zip(sockets, result["unix"], strict=True):
        # Nobody reads the messages to UCX's abstract sockets: docs/security.md.
        assert outcome in ("PermissionError", "ConnectionRefusedError") or path.startswith("@"), (path, outcome)
    assert processes[0].stdout is not None
    lines = (line for line in processes[0].stdout if "a step" in line)
    assert len(list(itertools.islice(lines, 2))) == 2  # the run goes on
    assert processes[1].poll() is None
