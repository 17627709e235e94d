"""Trains on several CSX and hurts a run at a random moment: a process, a connection or a disk. No bit may change.

`python csx_hurt.py FAULT|all STORE|all FOLDER COUNT [SEED [mpi]]`, with COUNT faults for each store. Every run
continues from what the last one left, on another number of CSX. All processes of a hurt run must end within 30 s, or
within 30 s after a stopped one counts as hanging. The run must have ended with one error that names a rank, its host
and its log, or have trained to its end. Every checkpoint is compared with the one of the same step of an unbroken run
on one CSX. A difference ends this process with a traceback. Set TF_CPP_MIN_LOG_LEVEL=3: TensorFlow else prints a
warning with a traceback of its own, which counts as a second error.

The ranks are forks of a process that has loaded TensorFlow, and use connections of our own, as on several nodes. With
`mpi` after SEED they are processes of MPI, as on one machine; each then imports TensorFlow, which takes long.

`kill`: SIGKILL of a process of the run. `stop`: SIGSTOP of one. `signal`: SIGINT or SIGTERM of the user's process.
`cut`: a connection between two processes ends (needs root). `disk`: the disk of one rank is full, or as good as (needs
root; stores file and mapped).
"""

from __future__ import annotations

import ctypes
import json
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path

import psutil

from cerebras_tensorflow.config import env
from cerebras_tensorflow.runtime.collectives import launch
from cerebras_tensorflow.runtime.collectives.placement import MpiCommand
from cerebras_tensorflow.runtime.host import stopping
from tests.integration.runs.run_hurt import (
    STEPS,
    STORES,
    Reference,
    Run,
    random_moment,
    small_disk,
    start,
    weight_servers,
)

SETTINGS = ("global_batch_size=8", "micro_batch_size=2")
NUMBERS_OF_CSX = (2, 3)
END_LIMIT_S = 30.0
RUN_LIMIT_S = 600.0  # of a run that trains to its end in spite of what happened
DISK_PAGE = 4096  # bytes
SILENCE_S = {env.TCP: 10, env.MPI: 30}  # a process hangs: on a busy machine the import of TensorFlow takes long
POLL_S = 0.01
NAMED = re.compile(r"rank \d on \S+ .*log is \S+")
PIDFD_GETFD = 438  # number of the system call

STARTER = """
import os, subprocess, sys
size, command = int(sys.argv[1]), sys.argv[2:]
ranks = [
    subprocess.Popen(command, env={**os.environ, "SLURM_PROCID": str(rank), "SLURM_NTASKS": str(size)})
    for rank in range(size)
]
for one in ranks:
    one.wait()
"""
Fault = Callable[[Run, Path, random.Random], str | None]
"""Hurts a run; returns what was hurt, None if there was nothing to hurt."""


def processes(run: Run, folder: Path) -> dict[int, str]:
    """Return the processes of a run on several CSX, by number, with what each is."""
    found = {run.process: "the user's process"}
    for path in folder.glob("csx/rank-?"):
        with suppress(OSError, ValueError):
            name = "the relay" if path.name == "rank-0" else f"CSX {path.name[-1]}"
            found[int(path.read_text().split()[1])] = name
    with suppress(psutil.Error):
        for child in psutil.Process(run.process).children():
            if "mpiexec" in " ".join(child.cmdline()):
                found[child.pid] = "mpiexec"
    return {number: name for number, name in found.items() if _is_alive(number)}


def _is_alive(number: int) -> bool:
    try:
        return psutil.Process(number).status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def kill(run: Run, folder: Path, rng: random.Random) -> str | None:
    """SIGKILL of a process."""
    alive = sorted(processes(run, folder).items())
    if not alive:
        return None
    number, name = rng.choice(alive)
    os.kill(number, signal.SIGKILL)
    return name


def stop(run: Run, folder: Path, rng: random.Random) -> str | None:
    """SIGSTOP of a process other than the user's, which alone could end the run then."""
    others = sorted(set(processes(run, folder).items()) - {(run.process, "the user's process")})
    if not others:
        return None
    number, name = rng.choice(others)
    os.kill(number, signal.SIGSTOP)
    return name


def interrupt(run: Run, _folder: Path, rng: random.Random) -> str:
    """SIGINT or SIGTERM of the user's process."""
    number = rng.choice((signal.SIGINT, signal.SIGTERM))
    os.kill(run.process, number)
    return number.name


def cut(run: Run, folder: Path, rng: random.Random) -> str | None:
    """End a connection of a process, as a network does that is lost."""
    places = [
        (number, int(descriptor), name)
        for number, name in sorted(processes(run, folder).items())
        if name != "mpiexec"
        for descriptor in sorted(os.listdir(f"/proc/{number}/fd"))
    ]
    rng.shuffle(places)
    for number, descriptor, name in places:
        link = _socket_of(number, descriptor)
        if link is not None:
            with link:
                link.shutdown(socket.SHUT_RDWR)
            return f"a connection of {name}"
    return None


def _socket_of(process: int, descriptor: int) -> socket.socket | None:
    """Return a connected socket of another process, None if a descriptor is none."""
    with suppress(OSError):
        if not os.readlink(f"/proc/{process}/fd/{descriptor}").startswith("socket:"):
            return None
        handle = os.pidfd_open(process)
        own = ctypes.CDLL(None, use_errno=True).syscall(PIDFD_GETFD, handle, descriptor, 0)
        os.close(handle)
        link = socket.socket(fileno=own) if own >= 0 else None
        if link is not None:
            with suppress(OSError):
                link.getpeername()
                if link.type != socket.SOCK_DGRAM:
                    return link
            link.close()
    return None


FAULTS: dict[str, Fault] = {"kill": kill, "stop": stop, "signal": interrupt, "cut": cut}


def wait_for_all(run: Run, hurt: set[int]) -> tuple[int, float]:
    """Wait until all processes of a hurt run have ended; return its exit status, and how long that took [s].

    A process that SIGSTOP stopped is a process that hangs: it is the one that may need SIGKILL.
    """
    begin = time.monotonic()
    status = run.status()
    while status is None or any(map(_is_alive, hurt)):
        assert time.monotonic() - begin < RUN_LIMIT_S, (
            f"after {RUN_LIMIT_S} s: exit status {status}, alive {[n for n in hurt if _is_alive(n)]}\n"
            + run.log.read_text()
        )
        time.sleep(POLL_S)
        status = run.status() if status is None else status
    return status, time.monotonic() - begin


def check_end(fault: str, victim: str, status: int, said: str) -> str:
    """Check the exit status and the message of a hurt run; return how it ended."""
    if status == 0:
        return "trained to the end"
    if victim == "the user's process" and fault == "kill":
        assert status == -signal.SIGKILL, (status, said)
        return "killed"
    if fault == "signal":
        if status == -signal.Signals[victim] or "KeyboardInterrupt" in said:
            assert "Starting" not in said, said  # the run had not begun
            return "ended before it began"
        assert status == 128 + signal.Signals[victim], (status, said)
        return "saved and ended"
    errors = [line for line in said.splitlines() if line.startswith("cerebras_tensorflow.errors.")]
    assert status == 1 and len(errors) == 1 and "Traceback" not in said, (fault, victim, status, said)
    assert NAMED.search(errors[0]), (fault, victim, errors[0], said)
    return "ended with an error that names a rank"


def hurt_one(chosen: str, run: Run, model_dir: Path, rng: random.Random) -> tuple[tuple[str, ...], float]:
    """Hurt a run; return what to count, and how long all its processes took to end [s]."""
    fault = rng.choice(sorted(FAULTS)) if chosen == "all" else chosen
    present = set(processes(run, model_dir))
    victim = FAULTS[fault](run, model_dir, rng)
    if victim is None:
        fault, victim = "signal", interrupt(run, model_dir, rng)
    status, seconds = wait_for_all(run, present)
    said = run.log.read_text()
    if status == 0 or fault == "signal":  # it computes, or saves: not an end by the fault
        seconds = 0.0
    assert seconds < END_LIMIT_S + env.read().csx_timeout_s * (fault == "stop"), (fault, victim, seconds, said)
    return ("faults", f"{fault}: {victim}", check_end(fault, victim, status, said)), seconds


def hurt_runs(chosen: str, store: str, reference: Reference, folder: Path, count: int, seed: int) -> Counter[str]:
    """Hurt runs with one store until `count` faults have happened; return how often what happened."""
    rng = random.Random(f"{chosen} {store} {seed}")
    home, model_dir = folder / "home", folder / "model"
    home.mkdir()
    counts: Counter[str] = Counter()
    longest = 0.0
    with weight_servers(store, home) as servers:
        while counts["faults"] < count:
            newest, num_csx = -1, 1
            while newest < STEPS:
                servers()
                is_last = counts["faults"] >= count
                num_csx = rng.choice([one for one in (*NUMBERS_OF_CSX, *[1] * is_last) if one != num_csx])
                run = start(store, rng.choice(("tensorflow", "h5")), model_dir, home, *SETTINGS, num_csx=num_csx)
                status = run.wait() if is_last else run.wait(random_moment(run, reference, rng))
                if status is None:
                    happened, seconds = hurt_one(chosen, run, model_dir, rng)
                    print(f"{store}: {num_csx} CSX, {happened[1:]}, {seconds:.1f} s", file=sys.stderr, flush=True)
                    longest = max(longest, seconds)
                    counts.update(happened)
                else:
                    assert status == 0, run.log.read_text()
                newest = reference.check(model_dir, newest, run.log)
            reference.check_whole(model_dir, run.log)
            counts["whole runs"] += 1
            shutil.rmtree(model_dir)
    counts["longest end [s], rounded up"] = int(-(-longest // 1))
    return counts


def fill_disks(store: str, reference: Reference, folder: Path, count: int, seed: int) -> Counter[str]:
    """Give one rank a disk that is too small for its weights, of random size. Then run on another number of CSX."""
    rng = random.Random(f"disk {store} {seed}")
    home, model_dir, stores = folder / "home", folder / "model", folder / "stores"
    home.mkdir()
    counts: Counter[str] = Counter()
    settings = (*SETTINGS, f"store_dir={stores}")
    for _ in range(count):
        num_csx, small = rng.choice(NUMBERS_OF_CSX), rng.randint(0, 10) * DISK_PAGE
        small_place = stores / "csx" / f"store-{num_csx - 1}"
        small_place.parent.mkdir(parents=True, exist_ok=True)
        for size in (small, None):
            with small_disk(small_place) if size is not None else nullcontext() as resize:
                if resize is not None and size is not None:
                    resize(size)
                number = num_csx if size is not None else rng.choice([one for one in (1, 2, 3) if one != num_csx])
                run = start(store, rng.choice(("tensorflow", "h5")), model_dir, home, *settings, num_csx=number)
                status, said = run.wait(), run.log.read_text()
                happened = check_end("disk", f"rank {number - 1}", status or 0, said)
                print(f"{store}: {number} CSX, disk of {size} B: {happened}", file=sys.stderr, flush=True)
                counts.update(("full disks", happened) if size is not None else ("resumed",))
                reference.check(model_dir, -1 if size is not None else STEPS, run.log)
            shutil.rmtree(stores, ignore_errors=True) if size is None else None
        shutil.rmtree(model_dir)
    return counts


@contextmanager
def warm_ranks(folder: Path) -> Iterator[None]:
    """In this block ranks are forks of a process that has loaded TensorFlow."""
    python = sys.executable
    server = subprocess.Popen([python, "-W", "ignore", "-m", "tests.warm.server", str(folder)], stdin=subprocess.PIPE)

    def command(size: int, _folder: Path) -> MpiCommand:
        return MpiCommand((python, "-IS", "-c", STARTER, str(size)), dict(os.environ), network=env.TCP)

    while not (folder / "python").exists():
        time.sleep(POLL_S)
    try:
        sys.executable, launch.mpi_command = str(folder / "python"), command
        yield
    finally:
        sys.executable = python
        server.communicate()


def main(chosen: str, store: str, folder: str, count: str, seed: str = "1", network: str = env.TCP) -> None:
    """Hurt runs with one store, or with each in turn; print the counts as JSON."""
    os.environ[env.CSX_TIMEOUT_S] = str(SILENCE_S[network])
    stopping.ANSWER_LIMIT_S = SILENCE_S[network]
    reference = Reference(Path(folder) / "unbroken", *SETTINGS, save_every=1)
    warm = Path(folder) / "warm"
    warm.mkdir()
    with warm_ranks(warm) if network == env.TCP else nullcontext():
        for one in STORES if store == "all" else (store,):
            own = Path(folder) / one
            own.mkdir()
            values = reference, own, int(count), int(seed)
            counts = fill_disks(one, *values) if chosen == "disk" else hurt_runs(chosen, one, *values)
            print(json.dumps({"store": one, **counts}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
