"""csctl and the cluster server: our own command, and the published client against our server."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml

from cerebras_tensorflow.system import jobs

WAITING = "import signal; print('step', 1, flush=True); signal.pause()"
STUBBORN = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('step', 1, flush=True); signal.pause()"


def read_until(child: subprocess.Popen[str], text: str) -> str:
    assert child.stdout is not None
    for line in child.stdout:
        if line.strip().startswith(text):
            return line.strip()
    raise AssertionError(f"{text!r} never came")


@pytest.fixture
def job(home: Path, argv: Callable[..., list[str]]) -> Iterator[subprocess.Popen[str]]:
    """A launch that runs until it is stopped."""
    with subprocess.Popen(
        argv("csrun_wse", "python", "-c", WAITING), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as child:
        read_until(child, "step 1")
        yield child
        child.kill()


def test_get_jobs_prints_the_documented_table(run, job: subprocess.Popen[str]) -> None:
    header, row = run("csctl", "get", "jobs").stdout.splitlines()
    assert header.split() == ["NAME", "AGE", "PHASE", "SYSTEMS", "USER", "LABELS"]
    assert re.fullmatch(r"wsjob-[a-z0-9]{22}  \d+s +RUNNING  cs2-embedded +\S+", row)


def test_cancel_lets_the_job_stop(run, home: Path, job: subprocess.Popen[str]) -> None:
    job_id = jobs.listed(home)[0].id
    done = run("csctl", "cancel", "job", job_id)
    assert (done.returncode, done.stdout) == (0, "Job canceled successfully\n")
    assert job.wait(timeout=20) == 143
    assert jobs.find(home, job_id).phase == "CANCELLED"


def test_cancel_removes_a_waiting_job_from_the_queue(run, home: Path, argv, job: subprocess.Popen[str]) -> None:
    with subprocess.Popen(
        argv("csrun_wse", "true"), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as waiting:
        assert waiting.stderr is not None
        while "is busy with" not in waiting.stderr.readline():
            continue
        waiting_id = jobs.listed(home, (jobs.QUEUED,))[0].id
        assert run("csctl", "cancel", "job", waiting_id).returncode == 0
        waiting.wait(timeout=20)
    assert jobs.find(home, waiting_id).phase == "CANCELLED"
    assert job.poll() is None


@pytest.mark.slow
def test_cancel_kills_a_job_that_does_not_stop_within_half_a_minute(run, home: Path, argv) -> None:
    with subprocess.Popen(
        argv("csrun_wse", "python", "-c", STUBBORN), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as child:
        read_until(child, "step 1")
        assert run("csctl", "cancel", "job", jobs.listed(home)[0].id).returncode == 0
        assert child.wait(timeout=30) == 137
    assert jobs.listed(home, jobs.FINISHED)[0].phase == "CANCELLED"


def test_labels_and_formats(run, home: Path, job: subprocess.Popen[str]) -> None:
    job_id = jobs.listed(home)[0].id
    assert run("csctl", "label", "job", job_id, "model=gptj", "gone=1").stdout == f"job/{job_id} was patched\n"
    run("csctl", "label", "job", job_id, "gone-")
    shown = json.loads(run("csctl", "get", "job", job_id, "-o", "json").stdout)
    assert shown["meta"]["labels"] == {"model": "gptj"}
    assert shown["status"]["phase"] == "RUNNING"
    assert "phase: RUNNING" in run("csctl", "get", "jobs", "-o", "yaml").stdout


def test_log_export(run, home: Path, tmp_path: Path) -> None:
    run("csrun_wse", "python", "-c", "print('in the', 'log')")
    job_id = jobs.listed(home, jobs.FINISHED)[0].id
    path = Path(run("csctl", "log-export", job_id, "-p", str(tmp_path)).stdout.strip())
    with zipfile.ZipFile(path) as archive:
        assert b"in the log" in archive.read("output.log")
        assert json.loads(archive.read("job.json"))["meta"]["name"] == job_id


def test_an_exported_log_does_not_hold_the_token_of_a_weight_server(run, home: Path, tmp_path: Path) -> None:
    submitted = jobs.submit(home, "cs2-embedded", "pipelined")
    (submitted.folder / "weight-server-0.json").write_text('{"token": "secret"}')
    (submitted.folder / "weight-server-0.log").write_text("ready")
    path = Path(run("csctl", "log-export", submitted.id, "-p", str(tmp_path)).stdout.strip())
    submitted.finish(jobs.SUCCEEDED)
    with zipfile.ZipFile(path) as archive:
        assert archive.namelist() == ["job.json", "weight-server-0.log"]


def test_errors_are_one_line_with_exit_code_1(run) -> None:
    for words in (("get", "foo"), ("get", "job", "nope"), ("cancel", "job", "nope"), ("label", "job", "nope", "a=1")):
        done = run("csctl", *words)
        assert done.returncode == 1
        assert re.fullmatch(r"Error: .* not found.*\n", done.stderr)


@pytest.fixture
def serve(home: Path, argv, tmp_path: Path) -> Iterator[Callable[..., tuple[Path, str]]]:
    """Starts `cs-system serve` on a free port; returns the client's configuration and the address."""
    children: list[subprocess.Popen[str]] = []

    def start(*words: str) -> tuple[Path, str]:
        config = tmp_path / f"csconfig{len(children)}"
        words = ("serve", "--listen", "127.0.0.1:0", "--write-csconfig", str(config), *words)
        child = subprocess.Popen(argv("cs-system", *words), stdout=subprocess.PIPE, text=True)
        children.append(child)
        line = read_until(child, "Serving")
        return config, line.split(" on ")[1].split(". ")[0]

    yield start
    for child in children:
        child.terminate()
        child.communicate(timeout=20)


def call(address: str, name: str, request, token: str = "", channel=None):
    import grpc

    from csrun.csctl import server

    with channel or grpc.insecure_channel(address) as open_channel:
        stub = server.CSCTL.services["CsCtlV1"].stub(open_channel)
        return getattr(stub, name)(request, metadata=(("auth-uid", "0"), ("auth-token", token)), timeout=20)


def test_a_wrong_token_can_neither_read_nor_change_jobs(
    serve, home: Path, tmp_path: Path, job: subprocess.Popen[str]
) -> None:
    import grpc

    from csrun.csctl.server import api

    (tmp_path / "token").write_text("secret\n")
    (tmp_path / "token").chmod(0o600)
    _, address = serve("--token-file", str(tmp_path / "token"))
    job_id = jobs.listed(home)[0].id
    requests = [
        ("Get", api.GetRequest(type="jobs", accept=1, representation=2)),
        ("CancelJobV2", api.CancelJobRequest(job_id=job_id)),
        ("CreateLogExport", api.CreateLogExportRequest(name=job_id)),
        ("DownloadLogExport", api.DownloadLogExportRequest(export_id="x")),
        ("Patch", api.PatchRequest(type="job", name=job_id, body=b'{"meta": {"labels": {"a": "1"}}}')),
    ]
    for name, request in requests:
        for token in ("", "wrong"):
            with pytest.raises(grpc.RpcError, match="wrong or missing token"):
                call(address, name, request, token)
    assert job.poll() is None
    assert not jobs.find(home, job_id).labels
    assert job_id in str(call(address, *requests[0], token="secret").raw)


@pytest.mark.parametrize("host", ["0.0.0.0", "192.0.2.1", "[::]"])
def test_serving_beyond_loopback_needs_tls_and_a_token(run, host: str) -> None:
    done = run("cs-system", "serve", "--listen", f"{host}:0")
    assert done.returncode == 1
    assert "that needs --tls-cert, --tls-key and --token-file" in done.stderr


@pytest.fixture(scope="session")
def published(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The csctl binary of a published wheel."""
    folder = tmp_path_factory.mktemp("csctl")
    name = f"cerebras_appliance=={request.param}"
    command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary=:all:", "-d", folder, name]
    subprocess.run([*command, "--python-version", "3.11"], check=True, timeout=300)
    with zipfile.ZipFile(next(folder.glob("*.whl"))) as wheel:
        path = Path(wheel.extract("cerebras/appliance/bin/raw/csctl", folder))
    path.chmod(0o755)
    return path


def test_config_view_has_the_published_shape(run, home: Path) -> None:
    shown = yaml.safe_load(run("csctl", "config", "view").stdout)
    assert list(shown) == ["clusters", "currentContext"]
    assert shown["clusters"][0]["server"] == f"file://{home}"
    assert list(yaml.safe_load(run("csctl", "config", "view", "--raw").stdout)) == [
        "clusters",
        "contexts",
        "currentContext",
    ]


def _without_server(text: str) -> dict:
    settings = yaml.safe_load(text)
    for cluster in settings["clusters"]:
        del cluster["server"]
        cluster["namespaces"] = [namespace["name"] for namespace in cluster["namespaces"]]
    return settings


@pytest.mark.interop
@pytest.mark.parametrize(
    ("published", "has_tls"),
    [("2.6.0", False), ("2.6.0", True), ("2.7.0", True), ("2.8.0", True), ("2.9.0", True), ("2.9.0", False)],
    indirect=["published"],
)
def test_the_published_client_works(
    published: Path, serve, run, has_tls: bool, home: Path, tmp_path: Path, job: subprocess.Popen[str]
) -> None:
    words: list[str] = []
    environ = dict(os.environ)
    if has_tls:
        cert, key, token = tmp_path / "cert.pem", tmp_path / "key.pem", tmp_path / "token"
        token.write_text("secret")
        token.chmod(0o600)
        subprocess.run(
            [
                *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=cs"),
                *("-addext", "subjectAltName=DNS:*.cluster-server.cerebras.local"),
                *("-keyout", str(key), "-out", str(cert)),
            ],
            check=True,
            capture_output=True,
        )
        words = ["--tls-cert", str(cert), "--tls-key", str(key), "--token-file", str(token)]
        environ["CSAUTH_TOKEN"] = "secret"
    config, _ = serve(*words)
    environ.setdefault("CSAUTH_TOKEN", (home / "serve_token").read_text().strip() if not has_tls else "secret")

    def csctl(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [published, "--csconfig", config, *arguments], capture_output=True, text=True, env=environ, timeout=60
        )

    job_id = jobs.listed(home)[0].id
    header, row = csctl("get", "jobs").stdout.splitlines()
    assert header.split() == ["NAME", "AGE", "PHASE", "SYSTEMS", "USER", "LABELS"]
    assert row.split()[0] == job_id
    assert csctl("label", "job", job_id, "model=gptj", "run=1").stdout == f"job/{job_id} was patched\n"
    assert csctl("label", "job", job_id, "run-").returncode == 0
    assert json.loads(csctl("get", "job", job_id, "-o", "json").stdout)["meta"]["labels"] == {"model": "gptj"}
    assert "model: gptj" in csctl("get", "jobs", "-o", "yaml").stdout
    for kind, text in (
        ("cluster", job_id),
        ("nodegroups", "nodegroup0"),
        ("volumes", "SERVERPATH"),
        ("version", "0.1.0"),
    ):
        assert text in csctl("get", kind).stdout
    assert "jobs" in csctl("types").stdout
    assert "keep no cache" in csctl("clear-worker-cache").stdout
    assert _without_server(csctl("config", "view").stdout) == _without_server(run("csctl", "config", "view").stdout)
    export = csctl("log-export", job_id, "-p", str(tmp_path))
    with zipfile.ZipFile(re.search(r"Logs archive: (\S+)", export.stdout).group(1)) as archive:
        assert b"step 1" in archive.read("output.log")
    assert csctl("cancel", "job", "nope").returncode == 1
    assert "canceled" in csctl("cancel", "job", job_id).stdout
    assert job.wait(timeout=30) == 143
    assert "CANCELLED" in csctl("get", "jobs", "-a").stdout
