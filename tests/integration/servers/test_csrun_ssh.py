"""The `cs>` shell over ssh: OpenSSH's own client against `cs-system serve --ssh`."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pexpect
import psutil
import pytest

from cerebras_tensorflow.system import registry

pytest.importorskip("asyncssh")
pytestmark = pytest.mark.skipif(
    shutil.which("ssh") is None, reason="needs OpenSSH's client: apt-get install openssh-client"
)

DOWN = "\x1b[B"
PASSWORD = "correct horse"


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the keys admin, viewer and stranger."""
    folder = tmp_path_factory.mktemp("keys")
    for name in ("admin", "viewer", "stranger"):
        words = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", name, "-f", str(folder / name)]
        subprocess.run(words, check=True)
    return folder


@pytest.fixture
def serve(home: Path, argv: Callable[..., list[str]], tmp_path: Path) -> Iterator[Callable[..., str]]:
    """Starts `cs-system serve --ssh`, adds its host key to known_hosts and returns the port."""
    children: list[subprocess.Popen[str]] = []

    def start(*words: str) -> str:
        command = argv("cs-system", "serve", "--listen", "127.0.0.1:0", "--ssh", "127.0.0.1:0", *words)
        child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        children.append(child)
        assert child.stdout is not None
        port = child.stdout.readline().split(" -p ")[1].split(",")[0]
        assert child.stdout.readline().startswith("Serving")
        public = subprocess.run(
            ["ssh-keygen", "-y", "-f", home / "ssh_host_key"], capture_output=True, text=True, check=True
        ).stdout
        (tmp_path / "known_hosts").write_text(f"[127.0.0.1]:{port} {public}")
        return port

    yield start
    for child in children:
        child.terminate()
        child.communicate(timeout=20)


@pytest.fixture
def port(serve: Callable[..., str], keys: Path) -> str:
    """A server that takes both keys."""
    return serve("--ssh-admin-keys", f"{keys}/admin.pub", "--ssh-viewer-keys", f"{keys}/viewer.pub")


@pytest.fixture
def ssh(tmp_path: Path, keys: Path) -> Callable[..., list[str]]:
    """Returns the command line of an ssh client that trusts the server and ignores this machine's settings."""

    def words(port: str, key: str, user: str, *command: str) -> list[str]:
        identity = ["-i", str(keys / key)] if key else []
        asked = "publickey" if key else "password"
        options = {
            "UserKnownHostsFile": tmp_path / "known_hosts",
            "StrictHostKeyChecking": "yes",
            "IdentitiesOnly": "yes",
            "PreferredAuthentications": asked,
            "NumberOfPasswordPrompts": "1",
            "BatchMode": "yes" if key else "no",
        }
        settings = [word for name, value in options.items() for word in ("-o", f"{name}={value}")]
        return ["ssh", "-F", "none", *settings, *identity, "-p", port, "--", f"{user}@127.0.0.1", *command]

    return words


def at_terminal(words: list[str]) -> pexpect.spawn:
    environ = {**os.environ, "TERM": "xterm"}
    environ.pop("SSH_AUTH_SOCK", None)
    return pexpect.spawn(words[0], words[1:], encoding="utf-8", timeout=30, dimensions=(40, 140), env=environ)


def finished(words: list[str], stdin: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(words, input=stdin, capture_output=True, text=True, timeout=60)


def test_the_quickstart_transcript_works_over_ssh(port: str, ssh, home: Path) -> None:
    shell = at_terminal(ssh(port, "admin", "admin"))
    shell.expect_exact("cs>")
    shell.send("config execmode show\r")
    shell.expect_exact("Configured Execution Mode : PIPELINED")
    shell.send("system standby\r")
    shell.expect_exact("This puts the system in standby. Do you want to proceed?")
    shell.expect_exact("> yes")
    shell.send("\r")
    shell.expect_exact("is in STANDBY")
    shell.send("config execmode setup\r")
    shell.expect_exact("> Pipelined")
    shell.send(DOWN + "\r")
    shell.expect_exact("Selected execution mode configuration: \N{HEAVY CHECK MARK} Weight Streaming")
    shell.send("system activate\r")
    shell.expect_exact("is ACTIVE in Weight Streaming mode")
    shell.send("exit\r")
    shell.expect(pexpect.EOF)
    shell.close()
    assert shell.exitstatus == 0
    assert registry.find_here().execution_mode == "weight_streaming"
    who = {change.who for change in registry.changes(home, "cs2-embedded")[1:]}
    assert len(who) == 1
    assert who.pop().startswith("admin (SHA256:")


def test_commands_and_scripts_have_exit_codes(port: str, ssh) -> None:
    done = finished(ssh(port, "admin", "admin", "config execmode show"))
    assert (done.returncode, done.stdout) == (0, "Configured Execution Mode : PIPELINED\n")
    refused = finished(ssh(port, "admin", "admin", "system", "activate"))
    assert refused.returncode == 1
    assert "nothing to activate" in refused.stderr
    script = finished(ssh(port, "admin", "admin"), "system standby\nyes\nsystem activate\n")
    assert script.returncode == 0, script.stderr
    assert "is ACTIVE" in script.stdout


def test_ssh_commands_never_reach_a_shell(port: str, ssh, tmp_path: Path) -> None:
    target = tmp_path / "evil"
    for line in (f"$(touch {target})", f"jobs; touch {target}", f"--line=x --may-change; `touch {target}`", "-h"):
        assert finished(ssh(port, "viewer", "guest", line)).returncode == 2
    assert not target.exists()


def test_non_administrators_can_read_but_not_change_the_system(port: str, ssh) -> None:
    shown = finished(ssh(port, "viewer", "alice", "system show"))
    assert shown.returncode == 0
    assert "State          : ACTIVE" in shown.stdout
    for line in ("system standby --yes", "config execmode setup pipelined", "system activate"):
        refused = finished(ssh(port, "viewer", "alice", line))
        assert refused.returncode == 1
        assert "only administrators" in refused.stderr
    assert not registry.find_here().state.is_standby
    shell = at_terminal(ssh(port, "viewer", "alice"))
    shell.expect_exact("cs>")
    shell.send("system standby\r")
    shell.expect_exact("only administrators may change this system; alice (SHA256:")
    shell.send("exit\r")
    shell.expect(pexpect.EOF)


@pytest.mark.parametrize(
    ("key", "user"), [("stranger", "admin"), ("stranger", "guest"), ("viewer", "admin"), ("admin", "guest")]
)
def test_a_key_with_the_wrong_user_or_an_unknown_key_is_refused(port: str, ssh, key: str, user: str) -> None:
    done = finished(ssh(port, key, user, "system show"))
    assert done.returncode == 255
    assert "Permission denied" in done.stderr


def test_the_password_is_valid_for_the_administrator_only(serve, ssh, tmp_path: Path) -> None:
    path = tmp_path / "password"
    path.write_text(PASSWORD + "\n")
    path.chmod(0o600)
    port = serve("--ssh-password-file", str(path))
    for user, password, text in (
        ("admin", PASSWORD, "Configured Execution Mode"),
        ("admin", "wrong", "Permission denied"),
        ("guest", PASSWORD, "Permission denied"),
    ):
        client = at_terminal(ssh(port, "", user, "config execmode show"))
        client.expect_exact("password:")
        client.sendline(password)
        client.expect_exact(text)
        client.expect(pexpect.EOF)


def test_forwarding_and_file_copies_are_refused(port: str, ssh, tmp_path: Path) -> None:
    words = ssh(port, "admin", "admin")
    done = finished([words[0], "-N", "-o", "ExitOnForwardFailure=yes", "-R", "0:127.0.0.1:1", *words[1:]])
    assert done.returncode == 255
    assert "forwarding failed" in done.stderr
    options = ["-P" if word == "-p" else word for word in words[1 : words.index("--")]]
    for protocol in ("-O", "-s"):
        copied = finished(["scp", protocol, *options, "admin@127.0.0.1:/etc/passwd", str(tmp_path)])
        assert copied.returncode != 0
    assert not (tmp_path / "passwd").exists()


def test_the_shell_of_a_disconnected_client_ends(port: str, ssh) -> None:
    shell = at_terminal(ssh(port, "admin", "admin"))
    shell.expect_exact("cs>")
    ours = [
        process for process in psutil.Process().children(recursive=True) if "csrun.shell.login" in process.cmdline()
    ]
    assert len(ours) == 1
    shell.close(force=True)
    assert psutil.wait_procs(ours, timeout=20)[1] == []


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ((), "no user could log in"),
        (("--ssh-admin-keys", "/nonexistent"), "cannot be read"),
        (("--ssh-password-file", "OPEN"), "others may read"),
        (("--ssh-password-file", "EMPTY"), "is empty"),
    ],
)
def test_a_server_without_usable_credentials_does_not_start(
    run, tmp_path: Path, words: tuple[str, ...], text: str
) -> None:
    files = {"OPEN": (0o644, PASSWORD), "EMPTY": (0o600, "\n")}
    for name, (mode, content) in files.items():
        (tmp_path / name).write_text(content)
        (tmp_path / name).chmod(mode)
    words = tuple(str(tmp_path / word) if word in files else word for word in words)
    done = run("cs-system", "serve", "--listen", "127.0.0.1:0", "--ssh", "127.0.0.1:0", *words)
    assert done.returncode == 1
    assert text in done.stderr


def test_wrong_passwords_are_delayed_across_connections(serve, tmp_path: Path) -> None:
    import asyncio
    import time

    import asyncssh

    path = tmp_path / "password"
    path.write_text(PASSWORD + "\n")
    path.chmod(0o600)
    port = int(serve("--ssh-password-file", str(path)))

    async def guess(password: str) -> bool:
        try:
            async with asyncssh.connect(
                "127.0.0.1", port, username="admin", password=password, known_hosts=None, client_keys=None, config=None
            ):
                return True
        except asyncssh.PermissionDenied:
            return False

    async def guesses() -> tuple[list[bool], float]:
        started = time.monotonic()
        return list(
            await asyncio.gather(*(guess(f"wrong {number}") for number in range(4)))
        ), time.monotonic() - started

    answers, wall_s = asyncio.run(guesses())
    assert answers == [False] * 4
    assert wall_s >= 4  # one pause after the other; each lasts a second
    assert asyncio.run(guess(PASSWORD))
