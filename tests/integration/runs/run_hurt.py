"""Trains in child processes and kills them, or fills their disk. No bit of the training may change.

`python run_hurt.py kill|disk STORE|all FOLDER COUNT [SEED]`, with COUNT for each store. Children are forked after
TensorFlow's import, so a run takes about a second. Every checkpoint that a hurt run leaves is compared with the one of
the same step of an unbroken run, which is always pipelined. If a checkpoint is lost, damaged or different, this process
ends with a traceback.
"""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from cerebras_tensorflow.config import env
from cerebras_tensorflow.runtime.weight_store.server import server_file
from cerebras_tensorflow.saver.checkpoint_reader import checkpoints_newest_first, open_checkpoint
from tests.integration.runs import toy_run

STORES = {
    "pipelined": (),
    "memory": ("weight_store=memory",),
    "mapped": ("weight_store=file",),
    "file": ("weight_store=file", "memory_budget=8GB"),
    "servers": ("weight_store=servers",),
}
FORMATS = ("tensorflow", "h5")
STEPS, SAVE_EVERY = 60, 2
SERVERS = 2
TIMEOUT_S = 300.0
POLL_S = 0.002

Checkpoint = dict[str, bytes]


@dataclass(frozen=True)
class Run:
    """A training run in a child process.

    Attributes:
        process: The child.
        log: File with its output.
        begin: When it started, by time.monotonic().
    """

    process: int
    log: Path
    begin: float

    def status(self) -> int | None:
        """Return the exit status, negative for a signal; None while it runs."""
        ended, status = os.waitpid(self.process, os.WNOHANG)
        return os.waitstatus_to_exitcode(status) if ended else None

    def wait(self, until: Callable[[], bool] = lambda: False) -> int | None:
        """Return the exit status; None if a condition is met first."""
        while (status := self.status()) is None and not until():
            if time.monotonic() - self.begin > TIMEOUT_S:
                os.kill(self.process, signal.SIGKILL)
                raise AssertionError(f"the run hangs:\n{self.log.read_text()}")
            time.sleep(POLL_S)
        return status


def start(
    store: str,
    form: str,
    model_dir: Path,
    home: Path,
    *more: str,
    num_csx: int = 1,
    environ: Mapping[str, str] = MappingProxyType({}),
) -> Run:
    """Start a run that trains to the last step; `more` settings are those of toy_run.py, `environ` are variables."""
    log = home / "log"
    log.write_text("")
    begin = time.monotonic()
    process = os.fork()
    if process:
        return Run(process, log, begin)
    try:
        os.dup2(os.open(log, os.O_WRONLY | os.O_APPEND), 1)
        os.dup2(1, 2)
        os.environ[env.HOME] = str(home)
        os.environ[env.EXECUTION_MODE] = env.PIPELINED if store == "pipelined" else env.WEIGHT_STREAMING
        if store == "servers":
            os.environ.update({env.INPUT_FOLDER: str(home), env.WEIGHT_SERVERS: str(SERVERS)})
        os.environ[env.NUM_CSX] = str(num_csx)
        os.environ.update(environ)
        settings = (f"format={form}", f"save_every={SAVE_EVERY}", *STORES[store], *more)
        sys.argv = ["toy_run.py", str(model_dir), str(STEPS), *settings]
        toy_run.main()
        status = 0
    except SystemExit as end:
        status = int(end.code or 0)
    except BaseException:  # noqa: BLE001 - a forked child reports any error, as Python does
        sys.excepthook(*sys.exc_info())
        status = 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def read(path: str) -> Checkpoint:
    """Return every tensor of a checkpoint, with every checksum verified."""
    with open_checkpoint(path) as reader:
        reader.verify()
        return {name: reader.read(name).tobytes() for name in reader.names()}


def step_of(path: str) -> int:
    """Return the step in a checkpoint's name."""
    return int(path.removesuffix(".h5").rpartition("-")[2])


class Reference:
    """The checkpoints of an unbroken, pipelined run.

    Args:
        folder: An empty folder for this run.
        more: Further settings of toy_run.py.
        save_every: Steps between its checkpoints.
    """

    def __init__(self, folder: Path, *more: str, save_every: int = SAVE_EVERY) -> None:
        home = folder / "home"
        home.mkdir(parents=True)
        run = start(
            "pipelined", "tensorflow", folder / "model", home, f"keep={STEPS + 1}", f"save_every={save_every}", *more
        )
        self.first_save_s = self.whole_s = 0.0
        assert run.wait(lambda: "Saving checkpoint" in run.log.read_text()) is None, run.log.read_text()
        self.first_save_s = time.monotonic() - run.begin
        assert run.wait() == 0, run.log.read_text()
        self.whole_s = time.monotonic() - run.begin
        paths = checkpoints_newest_first(folder / "model")
        self._steps = {step_of(path): read(path) for path in paths}
        assert sorted(self._steps) == list(range(0, STEPS + 1, save_every))
        assert len({checkpoint["wide"] for checkpoint in self._steps.values()}) == len(self._steps)

    def check(self, model_dir: Path, at_least: int, log: Path) -> int:
        """Compare all checkpoints of a run with this one's; return the step of the newest, -1 if there is none."""
        paths = checkpoints_newest_first(model_dir)
        for path in paths:
            assert read(path) == self._steps[step_of(path)], f"{path} has other values\n{log.read_text()}"
        newest = max(map(step_of, paths), default=-1)
        assert newest >= at_least, f"step {at_least} was saved, the newest is now {newest}\n{log.read_text()}"
        return newest

    def check_whole(self, model_dir: Path, log: Path) -> None:
        """Check that a run has reached its end with the same bits, and has left no scratch file behind."""
        self.check(model_dir, STEPS, log)
        left = [path for path in model_dir.rglob("*") if "partial" in path.name or "weight_store" in path.name]
        assert not left, left


@contextmanager
def weight_servers(store: str, home: Path) -> Iterator[Callable[[], list[int]]]:
    """Yield a function that starts the missing weight servers of a launch, and returns the processes of all."""
    servers: dict[int, subprocess.Popen[bytes]] = {}

    def started() -> list[int]:
        for index in range(SERVERS if store == "servers" else 0):
            if index not in servers or servers[index].poll() is not None:
                server_file(home, index).unlink(missing_ok=True)
                words = [sys.executable, "-m", "cerebras_tensorflow.runtime.weight_store.server", str(home), str(index)]
                servers[index] = subprocess.Popen(words)
        while not all(server_file(home, index).exists() for index in servers):
            time.sleep(POLL_S)
        return [server.pid for server in servers.values()]

    try:
        yield started
    finally:
        for server in servers.values():
            server.kill()
            server.wait()


def random_moment(run: Run, reference: Reference, rng: random.Random) -> Callable[[], bool]:
    """Return whether a moment has come: half of all moments are in a whole run, half in the part that saves."""
    begins = [run.begin] if rng.random() < 0.5 else []
    delay_s = rng.uniform(0, reference.whole_s - (0 if begins else reference.first_save_s))

    def has_come() -> bool:
        if not begins and "Saving checkpoint" in run.log.read_text():
            begins.append(time.monotonic())
        return bool(begins) and time.monotonic() - begins[0] > delay_s

    return has_come


def kill(store: str, reference: Reference, folder: Path, count: int, seed: int) -> dict[str, int]:
    """Kill runs, or a weight server under them, at random moments. Each next run continues from what they left."""
    rng = random.Random(f"{store} {seed}")
    home, model_dir = folder / "home", folder / "model"
    home.mkdir()
    counts = {"kills": 0, "kills of a weight server": 0, "kills of a resumed run": 0, "whole runs": 0}
    with weight_servers(store, home) as servers:
        while counts["kills"] < count:
            form, newest, status = rng.choice(FORMATS), -1, None
            while newest < STEPS or status != 0:  # a run that was killed after its last step left its scratch files
                processes = servers()
                run = start(store, form, model_dir, home)
                is_last = counts["kills"] >= count
                status = run.wait() if is_last else run.wait(random_moment(run, reference, rng))
                if status is None:
                    victim = rng.choice([run.process, *processes])
                    os.kill(victim, signal.SIGKILL)
                    status, said = run.wait(), run.log.read_text()
                    assert status == (-signal.SIGKILL if victim == run.process else 1) or status == 0, said
                    assert status != 1 or "goes on from the last checkpoint" in said, said
                    counts["kills"] += 1
                    counts["kills of a weight server"] += victim != run.process
                    counts["kills of a resumed run"] += newest >= 0
                else:
                    assert status == 0, run.log.read_text()
                newest = reference.check(model_dir, newest, run.log)
            reference.check_whole(model_dir, run.log)
            counts["whole runs"] += 1
            shutil.rmtree(model_dir)
    return counts


def disk(store: str, reference: Reference, folder: Path, count: int, _seed: int) -> dict[str, int]:
    """Give runs a disk that is too small, at points spread over what a run writes. Then make room and run again."""
    home, model_dir = folder / "home", folder / "model"
    home.mkdir()
    # A report is larger than all checkpoints, and a run does without it if the disk is full.
    settings = {env.REPORT: "0"}
    counts = {"full disks": 0, "full disks before a checkpoint": 0, "full disks that a run ended in spite of": 0}
    with weight_servers(store, home) as servers:
        for point in range(-1, count):
            servers()
            with small_disk(model_dir) as resize:
                form = FORMATS[point % 2]
                if point < 0:  # HDF5, which takes less room
                    run, most = start(store, form, model_dir, home, environ=settings), 0
                    while run.status() is None:
                        most = max(most, used_bytes(model_dir))
                        time.sleep(POLL_S)
                    reference.check_whole(model_dir, run.log)
                    continue
                resize(int(most * (point + 0.5) / count))
                run = start(store, form, model_dir, home, environ=settings)
                status, said = run.wait(), run.log.read_text()
                counts["full disks"] += 1
                newest = reference.check(model_dir, -1, run.log)
                counts["full disks before a checkpoint"] += newest < 0
                counts["full disks that a run ended in spite of"] += status == 0
                assert status in (0, 1), said
                assert status == 0 or is_clear(said), said
                resize(64 << 20)
                run = start(store, form, model_dir, home)
                assert run.wait() == 0, run.log.read_text()
                reference.check_whole(model_dir, run.log)
    return counts


def used_bytes(disk: Path) -> int:
    """Return how much of a disk is used."""
    now = os.statvfs(disk)
    return (now.f_blocks - now.f_bfree) * now.f_frsize


def is_clear(said: str) -> bool:
    """Whether a failed run shows one of our errors, without a traceback, that asks for space."""
    errors = [line for line in said.splitlines() if line.startswith("cerebras_tensorflow.errors.")]
    return len(errors) == 1 and "Traceback" not in said and re.search(r"; free |Free some space", errors[0]) is not None


@contextmanager
def small_disk(folder: Path) -> Iterator[Callable[[int], None]]:
    """Mount a disk at a folder; yield a function that sets its size in bytes."""

    def mount(*words: str) -> None:
        subprocess.run(["mount", *words, folder], check=True)

    folder.mkdir()
    mount("-t", "tmpfs", "-o", f"size={64 << 20}", "none")
    try:
        yield lambda num_bytes: mount("-o", f"remount,size={max(num_bytes, 4096)}")
    finally:
        subprocess.run(["umount", "-l", folder], check=True)
        folder.rmdir()


def main(what: str, chosen: str, folder: str, count: str, seed: str = "1") -> None:
    """Hurt runs with one store, or with each in turn; print the counts as JSON."""
    reference = Reference(Path(folder) / "unbroken")
    hurt = {"kill": kill, "disk": disk}[what]
    for store in STORES if chosen == "all" else (chosen,):
        own = Path(folder) / store
        own.mkdir()
        print(json.dumps({"store": store, **hurt(store, reference, own, int(count), int(seed))}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
