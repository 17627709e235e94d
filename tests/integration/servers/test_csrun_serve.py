"""A system on another host: found by its address, held by one run at a time, freed when the run ends."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cerebras_tensorflow.errors import ExecModeError, SystemNotFoundError, SystemStateError
from cerebras_tensorflow.system import jobs, registry, state

HOLD = (
    "import sys; from cerebras_tensorflow.system import registry\n"
    "with registry.find(sys.argv[1]).run('pipelined', 'from afar') as job:\n"
    "    print(job.id, flush=True); sys.stdin.read()\n"
)


@pytest.fixture
def server_home(tmp_path: Path) -> Path:
    """The home of the serving host."""
    return tmp_path / "server_home"


@pytest.fixture
def serve(
    home: Path, server_home: Path, argv: Callable[..., list[str]], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., str]]:
    """Starts `cs-system serve` and returns its address."""
    children: list[subprocess.Popen[str]] = []

    def start(*words: str) -> str:
        environ = {**os.environ, "CEREBRAS_HOME": str(server_home)}
        command = argv("cs-system", "serve", "--listen", "127.0.0.1:0", *words)
        child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environ)
        children.append(child)
        assert child.stdout is not None
        address = child.stdout.readline().split(" on ")[1].split(". ")[0]
        if "--token-file" not in words:
            monkeypatch.setenv("CSAUTH_TOKEN", (server_home / "serve_token").read_text().strip())
        return address

    yield start
    for child in children:
        child.terminate()
        child.communicate(timeout=20)


def hold(address: str) -> subprocess.Popen[str]:
    child = subprocess.Popen(
        [sys.executable, "-c", HOLD, address], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    assert child.stdout.readline().startswith("wsjob-")
    return child


def test_a_run_on_a_served_system_is_a_job_on_the_server(serve, server_home: Path) -> None:
    address = serve()
    with registry.find(address).run("weight_streaming", "from afar") as job:
        listed = jobs.listed(server_home)
        assert [(one.id, one.number, one.phase) for one in listed] == [(job.id, job.number, "RUNNING")]
        assert listed[0].user == f"{jobs.user_name()}@127.0.0.1"
    assert jobs.find(server_home, job.id).phase == "SUCCEEDED"
    with pytest.raises(RuntimeError), registry.find(address).run("weight_streaming") as job:
        raise RuntimeError("no good")
    assert jobs.find(server_home, job.id).message == "RuntimeError: no good"


def test_runs_of_several_hosts_queue(serve, server_home: Path) -> None:
    address = serve()
    first = hold(address)
    messages: list[str] = []

    def on_wait(line: str) -> None:
        messages.append(line)
        first.communicate("")

    with registry.find(address).run("pipelined", on_wait=on_wait):
        assert len(messages) == 1 and "is busy with job 1" in messages[0]


def test_named_systems_are_served_side_by_side_each_with_its_own_queue(serve, server_home: Path) -> None:
    registry.create(server_home, "lab", "10.0.0.1", "weight_streaming")
    first, second = registry.find(serve()), registry.find(serve("--system", "lab"))
    assert (first.name, second.name) == ("cs2-embedded", "lab")
    with first.run("pipelined"), second.run("weight_streaming"):
        assert {job.system for job in jobs.listed(server_home, (jobs.RUNNING,))} == {"cs2-embedded", "lab"}


def test_a_killed_client_frees_the_system(serve, server_home: Path) -> None:
    address = serve()
    first = hold(address)
    first.kill()
    first.communicate()
    started = time.monotonic()
    with registry.find(address).run("pipelined"):
        assert time.monotonic() - started < 10
    assert [job.phase for job in jobs.listed(server_home, jobs.FINISHED)] == ["FAILED", "SUCCEEDED"]


def test_a_served_system_refuses_runs_that_its_state_forbids(serve, server_home: Path) -> None:
    registry.create(server_home, "lab", execution_mode="pipelined")
    address = serve("--system", "lab")
    with pytest.raises(ExecModeError, match="Pipelined mode"), registry.find(address).run("weight_streaming"):
        pass
    registry.change(server_home, "lab", state.to_standby, "standby")
    with pytest.raises(SystemStateError, match="STANDBY"), registry.find(address).run("pipelined"):
        pass


def test_a_wrong_token_finds_no_system(serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "token").write_text("secret")
    (tmp_path / "token").chmod(0o600)
    address = serve("--token-file", str(tmp_path / "token"))
    with pytest.raises(SystemNotFoundError, match="wrong or missing token"):
        registry.find(address)
    monkeypatch.setenv("CSAUTH_TOKEN", "secret")
    assert registry.find(address).name == "cs2-embedded"


def test_a_signal_to_another_thread_ends_the_server(server_home: Path, argv) -> None:
    environ = {**os.environ, "CEREBRAS_HOME": str(server_home)}
    command = argv("cs-system", "serve", "--listen", "127.0.0.1:0")
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environ) as child:
        assert child.stdout is not None
        assert child.stdout.readline().startswith("Serving ")
        other = max(int(path.name) for path in Path(f"/proc/{child.pid}/task").iterdir())
        assert other != child.pid
        assert ctypes.CDLL(None).tgkill(child.pid, other, int(signal.SIGTERM)) == 0
        try:
            assert child.communicate(timeout=30)[0] == "Ended.\n"
        finally:
            child.kill()
    assert child.returncode == 0


def test_a_client_needs_the_tls_certificate_of_the_server(
    serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=cs"),
            *("-addext", "subjectAltName=DNS:*.cluster-server.cerebras.local"),
            *("-keyout", str(key), "-out", str(cert)),
        ],
        check=True,
        capture_output=True,
    )
    address = serve("--tls-cert", str(cert), "--tls-key", str(key))
    with pytest.raises(SystemNotFoundError, match="CEREBRAS_TLS_CERT"):
        registry.find(address)
    monkeypatch.setenv("CEREBRAS_TLS_CERT", str(cert))
    with registry.find(address).run("pipelined") as job:
        assert job.id.startswith("wsjob-")


def test_cancelling_on_the_server_stops_the_client(serve, server_home: Path, argv) -> None:
    address = serve()
    child = hold(address)
    environ = {**os.environ, "CEREBRAS_HOME": str(server_home)}
    done = subprocess.run(argv("csctl", "cancel", "job", jobs.listed(server_home)[0].id), env=environ, timeout=60)
    assert done.returncode == 0
    child.communicate(timeout=20)
    assert child.returncode == -15
    assert jobs.listed(server_home, jobs.FINISHED)[0].phase == "CANCELLED"


def test_the_run_and_not_the_launcher_queues_on_a_served_system(serve, server_home: Path, run) -> None:
    address = serve()
    code = (
        "import sys; from cerebras_tensorflow.system import registry\n"
        "with registry.find(sys.argv[2]).run('pipelined') as job: print(job.id)"
    )
    done = run("csrun_wse", "--executor", "embedded", "python", "-c", code, "--cs_ip", address)
    assert done.returncode == 0, done.stderr
    assert jobs.listed(server_home, jobs.FINISHED)[0].id == done.stdout.split()[-1]


def test_a_process_with_tensorflow_can_hold_a_served_system(serve) -> None:
    code = "import tensorflow\n" + HOLD
    done = subprocess.run([sys.executable, "-c", code, serve()], input="", capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.startswith("wsjob-")


def test_labels_of_a_launch_reach_its_job_on_the_server(serve, server_home: Path, run) -> None:
    address = serve()
    code = (
        "import sys; from cerebras_tensorflow.system import registry\n"
        "with registry.find(sys.argv[2]).run('pipelined'): pass"
    )
    labels = ("--job-labels", "model=gptj,run=1")
    done = run("csrun_wse", "--executor", "embedded", *labels, "python", "-c", code, "--cs_ip", address)
    assert done.returncode == 0, done.stderr
    assert jobs.listed(server_home, jobs.FINISHED)[0].labels == {"model": "gptj", "run": "1"}
