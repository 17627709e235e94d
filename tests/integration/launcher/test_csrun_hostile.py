"""Other users of this machine, and clients that misbehave, against `cs-system serve` and csctl."""

from __future__ import annotations

import json
import os
import subprocess
import time
import zipfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import grpc
import pytest

from cerebras_tensorflow.system import jobs, protocol, remote, token
from csrun.csctl import actions
from csrun.csctl.resources import ResourceError


@pytest.fixture
def server(home: Path, argv: Callable[..., list[str]]) -> Iterator[str]:
    """`cs-system serve` without any options, and its address."""
    command = argv("cs-system", "serve", "--listen", "127.0.0.1:0")
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        yield child.stdout.readline().split(" on ")[1].split(". ")[0]
        child.terminate()


ATTACK = """
import grpc, sys
from cerebras_tensorflow.system import protocol
from csrun.csctl.server import CSCTL, api
def attack():
    address, job = sys.argv[1:]
    with grpc.insecure_channel(address) as channel:
        csctl = CSCTL.services["CsCtlV1"].stub(channel)
        for name, request in (
            ("Get", api.GetRequest(type="jobs", accept=1, representation=2)),
            ("CancelJobV2", api.CancelJobRequest(job_id=job)),
            ("CreateLogExport", api.CreateLogExportRequest(name=job)),
        ):
            try:
                print("DONE", getattr(csctl, name)(request, timeout=10))
            except grpc.RpcError as exc:
                print(exc.code().name)
"""


def test_another_user_can_neither_read_nor_cancel_jobs(home: Path, server: str, as_nobody) -> None:
    job = jobs.submit(home, "lab", "pipelined")
    assert (home / "serve_token").stat().st_mode & 0o777 == 0o600
    output, errors = as_nobody(ATTACK, server, job.id).communicate(timeout=60)
    assert output.split() == ["UNAUTHENTICATED"] * 3, errors
    assert not job.record.is_cancel_requested


def test_the_same_user_needs_no_token_settings(home: Path, server: str) -> None:
    assert remote.find(server) is not None


def test_the_token_is_not_sent_to_another_users_server(home: Path, as_nobody) -> None:
    token.make(home)
    script = """
import socket, sys
def attack():
    listener = socket.create_server(("127.0.0.1", 0))
    print(listener.getsockname()[1], flush=True)
    sys.stdin.read()
"""
    with as_nobody(script) as other:
        port = int(other.stdout.readline())
        assert token.for_server("127.0.0.1", port) == ""
        other.stdin.close()


@pytest.mark.parametrize("has_token", [False, True])
def test_silent_streams_do_not_block_the_server(home: Path, server: str, has_token: bool) -> None:
    secret = token.read(home / "serve_token")
    metadata = (("auth-token", secret),) if has_token else ()
    messages = protocol.load(remote.PROTO).messages
    with grpc.insecure_channel(server) as channel, grpc.insecure_channel(server) as own:
        call = channel.stream_stream("/cerebras_tensorflow.system.Systems/Run", bytes, bytes)
        unary = channel.stream_stream("/cerebras_tensorflow.system.Systems/Show", bytes, bytes)
        ended: list[bool] = []

        def silence() -> Iterator[bytes]:
            while not ended:
                time.sleep(0.05)
            yield from ()

        held = [
            method(silence(), metadata=metadata) for method in (call, unary) for _ in range(60 if has_token else 140)
        ]
        show = protocol.load(remote.PROTO).services["Systems"].stub(own).Show
        # A full server refuses calls until the silent streams time out.
        shown = None
        deadline = time.monotonic() + 60
        while shown is None and time.monotonic() < deadline:
            with suppress(grpc.RpcError):
                shown = show(messages.ShowRequest(), metadata=(("auth-token", secret),), timeout=15)
        assert shown is not None and shown.name == "cs2-embedded"
        ended.append(True)
        for one in held:
            one.cancel()


@pytest.mark.parametrize(
    ("content", "mode", "text"),
    [
        ("secret", 0o644, "others may read"),
        ("secret", 0o660, "others may read"),
        ("", 0o600, "is empty or too short"),
        ("two\nlines", 0o600, "a token of one line"),
    ],
)
def test_a_token_file_that_others_read_or_no_client_can_send_is_refused(
    run, tmp_path: Path, content: str, mode: int, text: str
) -> None:
    path = tmp_path / "token"
    path.write_text(content)
    path.chmod(mode)
    done = run("cs-system", "serve", "--listen", "127.0.0.1:0", "--token-file", str(path))
    assert done.returncode == 1
    assert text in done.stderr


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--listen", "127.0.0.1:70000"], "'127.0.0.1:70000': expected HOST:PORT, with a port up to 65535"),
        (["--listen", "127.0.0.1:0", "--tls-key", "key.pem"], "--tls-cert and --tls-key need each other"),
        (["--listen", "127.0.0.1:0", "--write-csconfig", "/dev/full"], "cannot write /dev/full"),
    ],
)
def test_a_server_that_would_not_do_what_its_options_say_is_refused(run, words: list[str], text: str) -> None:
    done = run("cs-system", "serve", *words)
    assert done.returncode == 1
    assert text in done.stderr


def test_an_export_skips_links_and_pipes(home: Path, tmp_path: Path) -> None:
    job = jobs.submit(home, "lab", "pipelined")
    secret = tmp_path / "secret"
    secret.write_text("top secret")
    (job.folder / "output.log").write_text("step 1")
    (job.folder / "link.log").symlink_to(secret)
    (job.folder / "folder.log").symlink_to(tmp_path, target_is_directory=True)
    os.link(secret, job.folder / "hard.log")
    os.mkfifo(job.folder / "pipe.log")
    (job.folder / "restart-1").mkdir()
    (job.folder / "restart-1" / "output.log").write_text("step 2")
    with zipfile.ZipFile(actions.export_log(home, job.id, tmp_path)) as archive:
        assert sorted(archive.namelist()) == ["job.json", "output.log", "restart-1/output.log"]


def test_an_export_does_not_write_through_a_link(home: Path, tmp_path: Path) -> None:
    job = jobs.submit(home, "lab", "pipelined")
    victim = tmp_path / "victim"
    victim.write_text("precious")
    (tmp_path / f"{job.id}.zip").symlink_to(victim)
    actions.export_log(home, job.id, tmp_path)
    assert victim.read_text() == "precious"


def test_a_job_folder_that_is_a_link_is_not_exported(home: Path, tmp_path: Path) -> None:
    job = jobs.submit(home, "lab", "pipelined")
    job.folder.rmdir()
    (tmp_path / "elsewhere").mkdir()
    job.folder.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ResourceError, match="cannot export"):
        actions.export_log(home, job.id, tmp_path)


@pytest.mark.parametrize("value", [0, False, [], {}, 1, ["x"], {"a": "b"}, "\x1b[31m", "x" * 64])
def test_a_malformed_label_is_refused(home: Path, value: object) -> None:
    job = jobs.submit(home, "lab", "pipelined")
    with pytest.raises(ResourceError, match="is not a label"):
        actions.label(home, job.id, {"key": value})
    assert not job.record.labels


@pytest.mark.parametrize("changes", [[], "text", 5, None, {str(number): "x" for number in range(100)}])
def test_labels_must_be_at_most_64_pairs(home: Path, changes: object) -> None:
    job = jobs.submit(home, "lab", "pipelined")
    with pytest.raises(ResourceError, match="at most 64 pairs"):
        actions.label(home, job.id, changes)


def test_names_with_terminal_escapes_are_shown_escaped(home: Path, run) -> None:
    job = jobs.submit(home, "lab", "pipelined", "\x1b]0;evil\x07", {"a": "\x1b[31m"}, user="\x1b[2Jmallory")
    job.wait_for_wafer(lambda: True)
    for words in (
        ["get", "jobs"],
        ["get", "jobs", "-o", "yaml"],
        ["get", "jobs", "-o", "json"],
        ["get", "job", job.id],
    ):
        done = run("csctl", *words)
        assert job.id in done.stdout, done.stderr
        assert "\x1b" not in done.stdout
    assert json.loads(run("csctl", "get", "job", job.id, "-o", "json").stdout)["meta"]["labels"] == {"a": "\x1b[31m"}
    for command in ("jobs", "system show"):
        assert "\x1b" not in run("cs", "-c", command).stdout


def test_arguments_that_are_not_utf8_reach_the_command_and_are_recorded(home: Path, argv) -> None:
    code = "import sys, os; os.write(1, os.fsencode(sys.argv[1]))"
    words = [*argv("csrun_wse", "--executor", "embedded", "python", "-c", code), b"caf\xe9"]
    done = subprocess.run(words, capture_output=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith(b"caf\xe9")
    assert jobs.listed(home, jobs.FINISHED)[0].description.endswith(r"'caf\xe9'")


def test_cancel_does_not_kill_a_foreign_process_named_in_a_record(home: Path, run) -> None:
    from cerebras_tensorflow.system import database

    job = jobs.submit(home, "lab", "pipelined")
    with subprocess.Popen(["sleep", "60"]) as stranger:
        with database.transaction(jobs.jobs_file(home)) as connection:
            connection.execute("UPDATE jobs SET pid = ? WHERE id = ?", (stranger.pid, job.id))
        actions.request_cancel(home, job.id, "mallory")
        assert job.record.is_cancel_requested
        assert stranger.poll() is None
        stranger.kill()


def test_a_mount_folder_with_a_comma_is_refused(home: Path, run, tmp_path: Path) -> None:
    home.mkdir()
    (home / "site.conf").write_text("SINGULARITY_IMAGE=/image.sif\n")
    folder = tmp_path / "a,b"
    folder.mkdir()
    before = os.getcwd()
    os.chdir(folder)
    try:
        done = run("csrun_wse", "--dry-run", "python", "run.py")
    finally:
        os.chdir(before)
    assert done.returncode == 1
    assert "a,b" in done.stderr
    assert "comma" in done.stderr


@pytest.mark.parametrize(
    ("srun", "code", "message"),
    [
        (b"no program", 126, "srun cannot be executed: Exec format error"),
        (b"#!/bin/sh\nprintf '\\033[2J\\377refused' >&2; exit 7\n", 7, r"\x1b[2J�refused"),
        (b"#!/bin/sh\nkill -9 $$\n", 137, "no reason given"),
    ],
)
def test_an_srun_that_misbehaves_is_one_error(
    srun: bytes, code: int, message: str, run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "srun").write_bytes(srun)
    (tmp_path / "srun").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    done = run("csrun_wse", "--executor", "slurm", "true")
    assert done.returncode == code
    assert message in done.stderr
    assert "Traceback" not in done.stderr
