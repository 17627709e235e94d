"""Fixtures for the tests of all packages: a private CEREBRAS_HOME, golden files, the launchers as commands."""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import settings

# The duration of an example depends on the machine, not on the code.
settings.register_profile("no deadline", deadline=None)
settings.load_profile("no deadline")

# Most tests look at other things than reports; those about reports ask for them.
os.environ.setdefault("CEREBRAS_REPORT", "0")

ROOT = Path(__file__).parent.parent
GOLDEN = Path(__file__).parent / "golden"
COMMANDS = {
    "csrun_wse": "csrun.cli:csrun_wse",
    "csrun_cpu": "csrun.cli:csrun_cpu",
    "cs": "csrun.shell.cli:main",
    "cs-system": "csrun.system_cli:main",
    "csctl": "csrun.csctl.cli:main",
    "cs_input_analyzer": "csrun.input_analyzer:cs_input_analyzer",
}


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add --regold."""
    parser.addoption("--regold", action="store_true", help="rewrite the golden files instead of comparing with them")


@pytest.fixture(scope="session", autouse=True)
def interruptible() -> None:
    """Restores Ctrl-C: a shell makes background commands ignore it, and the processes we start would inherit that."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A private CEREBRAS_HOME for the test and the processes that it starts."""
    folder = tmp_path / "cerebras_home"
    monkeypatch.setenv("CEREBRAS_HOME", str(folder))
    for name in ("CEREBRAS_EXECUTION_MODE", "CSRUN_JOB_ID", "CSRUN_ROLE", "CSRUN_TASK", "CSRUN_LAYOUT", "K8S_CS_IP"):
        monkeypatch.delenv(name, raising=False)
    path = os.environ.get("PYTHONPATH")
    monkeypatch.setenv("PYTHONPATH", f"{ROOT}{os.pathsep}{path}" if path else str(ROOT))
    return folder


@pytest.fixture
def argv() -> Callable[..., list[str]]:
    """Returns the command line of one of our commands. The command need not be on PATH."""

    def words(command: str, *arguments: str) -> list[str]:
        module, function = COMMANDS[command].split(":")
        return [sys.executable, "-c", f"import sys; from {module} import {function} as f; sys.exit(f())", *arguments]

    return words


@pytest.fixture
def run(home: Path, argv: Callable[..., list[str]]) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs one of our commands to its end."""

    def run_command(command: str, *arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        return subprocess.run(argv(command, *arguments), capture_output=True, text=True, input=stdin, timeout=60)

    return run_command


@pytest.fixture(scope="session")
def warm_python(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[str]]:
    """A command that runs a script as `python` does, with TensorFlow loaded already. It saves three seconds of a CPU.

    A script whose start is tested needs sys.executable: its imports, its first lines, its environment at the import.
    """
    folder = tmp_path_factory.mktemp("warm")
    environ = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
    words = [sys.executable, "-W", "ignore", "-m", "tests.warm.server", folder]
    pipe = subprocess.PIPE
    with subprocess.Popen(words, cwd=ROOT, env=environ, stdin=pipe, stdout=pipe, text=True) as server:
        assert server.stdout is not None
        assert server.stdout.readline() == "ready\n"
        yield [str(folder / "python")]
        server.communicate()


@pytest.fixture
def warm_argv(argv: Callable[..., list[str]], warm_python: list[str]) -> Callable[..., list[str]]:
    """As `argv`; every Python that the command starts has TensorFlow loaded already, as with `warm_python`."""

    def words(command: str, *arguments: str) -> list[str]:
        python, flag, code, *rest = argv(command, *arguments)
        return [python, flag, f"import sys; sys.executable = {warm_python[0]!r}; {code}", *rest]

    return words


@pytest.fixture(scope="session")
def published_python(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A Python with the published readers and writers of checkpoints. All processes of a test run share it."""
    folder = tmp_path_factory.getbasetemp()
    folder = folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder
    python = folder / "published" / "bin" / "python"
    is_made = folder / "published.made"
    with open(folder / "published.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not is_made.exists():
            subprocess.run([ROOT / "scripts" / "interop_peer.sh", python.parents[1], sys.executable], check=True)
            is_made.touch()
    return str(python)


@pytest.fixture
def as_nobody(tmp_path: Path) -> Callable[..., subprocess.Popen[str]]:
    """Starts a script and calls its `attack()` as another user. The script's imports run before the switch."""
    if os.getuid() != 0:
        pytest.skip("needs root, to become another user")
    for folder in (tmp_path, *tmp_path.parents):
        if folder.owner() == "root" and str(folder) not in ("/", "/tmp"):
            folder.chmod(folder.stat().st_mode | 0o055)

    def start(script: str, *arguments: object) -> subprocess.Popen[str]:
        become = "import os, sys; os.setgroups([]); os.setgid(65534); os.setuid(65534); attack()"
        words = [sys.executable, "-c", f"{script}\n{become}", *map(str, arguments)]
        pipe = subprocess.PIPE
        return subprocess.Popen(words, cwd=ROOT, stdin=pipe, stdout=pipe, stderr=pipe, text=True)

    return start


@pytest.fixture(scope="session")
def shim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The library that makes writes fail."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("needs a C compiler")
    path = tmp_path_factory.mktemp("shim") / "faults.so"
    source = Path(__file__).parent / "integration" / "runs" / "faults.c"
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", path, source, "-ldl"], check=True)
    return path


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """Compares a text with the golden file of a name, or rewrites it under --regold."""

    def check(name: str, text: str) -> None:
        path = GOLDEN / name
        if request.config.getoption("--regold"):
            path.write_text(text, encoding="utf-8")
        assert text == path.read_text(encoding="utf-8")

    return check


@pytest.fixture(scope="session")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A real Slurm of four nodes: the one of SLURM_CONF if set, else a private one for this session."""
    if os.environ.get("SLURM_CONF"):
        yield
        return
    environ = {**os.environ, "SLURM_LAB_DIR": str(tmp_path_factory.mktemp("slurm"))}
    scripts = ROOT / "scripts" / "slurm_lab"
    line = subprocess.run([scripts / "start.sh"], env=environ, capture_output=True, text=True, check=True).stdout
    os.environ["SLURM_CONF"] = line.strip().partition("=")[2]
    try:
        yield
    finally:
        del os.environ["SLURM_CONF"]
        subprocess.run([scripts / "stop.sh"], env=environ, check=True)
