"""Writes checkpoints in child processes and kills them or fills their disk.

`python saver_hurt.py WHAT KIND FOLDER COUNT SEED`. Children are forked, so hundreds of them take seconds. If a
checkpoint is lost or damaged, this process ends with a traceback.
"""

from __future__ import annotations

import os
import random
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from cerebras_tensorflow.errors import CheckpointError
from cerebras_tensorflow.saver import cli, tf_h5_saver
from cerebras_tensorflow.saver.bundle.writer import BundleWriter
from cerebras_tensorflow.saver.checkpoint_reader import checkpoints_newest_first, is_complete, open_checkpoint
from cerebras_tensorflow.saver.files.atomic import FolderLock
from cerebras_tensorflow.saver.model_dir.retention import Policy, clean_up, record_save

SAVED = ["bundle", "h5", "shards", "gzip"]
CHANGED = ["update", "update shards", "to_h5", "to_tensorflow"]
KINDS = [*SAVED, *CHANGED]
ELEMENTS = 30_000


def values(step: int) -> dict[str, np.ndarray]:
    """Return tensors filled with the number of the step."""
    return {name: np.full(ELEMENTS, step) for name in ("a", "b", "c")}


def save(kind: str, path: Path, step: int) -> None:
    """Write one checkpoint."""
    if kind == "bundle":
        with BundleWriter(path, lambda name, size: 1 if name == "b" else 0) as writer:
            for name, value in values(step).items():
                writer.add(name, value)
    else:
        sharding = ELEMENTS * 8 if "shards" in kind else None
        tf_h5_saver.save(path, values(step), sharding, "gzip" if kind == "gzip" else "none")


def prepare(kind: str, folder: Path) -> None:
    """Write the files that `work` changes."""
    if kind.startswith("update"):
        save(kind, folder / "c.h5", 0)
    for parity in range(2) if kind.startswith("to_") else ():
        save("bundle", folder / f"source-{parity}", parity)
        save("h5", folder / f"source-{parity}.h5", parity)
    if kind.startswith("to_"):
        work(kind, folder, 0)


def work(kind: str, folder: Path, step: int) -> None:
    """Do one step: save and delete old checkpoints, update in place, or convert over the last result."""
    if kind in SAVED:
        path = folder / f"model-ckpt-{step}{'' if kind == 'bundle' else '.h5'}"
        save(kind, path, step)
        record_save(str(folder), str(path), Policy(keep_max=2))
    elif kind.startswith("update"):
        tf_h5_saver.update(folder / "c.h5", values(step))
    else:
        is_to_h5 = kind == "to_h5"
        command = cli.tensorflow_to_h5 if is_to_h5 else cli.h5_to_tensorflow
        source = folder / f"source-{step % 2}{'' if is_to_h5 else '.h5'}"
        if command([str(source), str(folder / ("c.h5" if is_to_h5 else "c")), "--force", "--quiet"]):
            raise CheckpointError("the conversion failed; see above")


def steps_in(path: str | Path) -> set[int]:
    """Return the steps in the values of a checkpoint, with every checksum verified."""
    with open_checkpoint(path) as reader:
        reader.verify()
        return {int(step) for name in ("a", "b", "c") for step in np.unique(reader.read(name))}


def check(kind: str, folder: Path, done: int) -> int:
    """Check that nothing complete is lost and nothing partial has a final name; return the newest step."""
    if kind in SAVED:
        paths = checkpoints_newest_first(folder)
        assert all(is_complete(path) for path in paths), paths
        stored = set()
        for path in paths:
            (step,) = steps_in(path)
            assert f"-{step}" in path
            stored.add(step)
        # The last two recorded checkpoints exist, and perhaps a newer one.
        assert done < 2 or {done - 1, done} <= stored or {done, done + 1} <= stored, (done, stored)
        return max(stored, default=0)
    result = "c" if kind == "to_tensorflow" else "c.h5"
    (step,) = steps_in(folder / result)
    if kind.startswith("update"):
        assert done <= step <= done + 1, (done, step)
        return step
    for parity in range(2):
        assert steps_in(folder / f"source-{parity}") == steps_in(folder / f"source-{parity}.h5") == {parity}
    assert step in (done % 2, (done + 1) % 2)
    return done


def in_child(run: Callable[[int], object]) -> tuple[int, int]:
    """Run a function in a child; return the child's process id and the pipe to read what the function writes."""
    reading, writing = os.pipe()
    process = os.fork()
    if process:
        os.close(writing)
        return process, reading
    try:
        run(writing)
        os._exit(0)
    except CheckpointError as error:
        os.write(writing, str(error).encode())
        os._exit(2)
    except BaseException as error:  # noqa: BLE001 - a forked child reports any error
        os.write(writing, repr(error).encode())
        os._exit(1)
    finally:
        os._exit(1)


def rest_of(pipe: int) -> bytes:
    """Read a pipe to its end."""
    with open(pipe, "rb") as file:
        return file.read()


def kill(kind: str, folder: Path, count: int, seed: int) -> None:
    """Kill the worker at random moments. Complete checkpoints must survive; the next worker continues from them."""
    rng = random.Random(seed)
    prepare(kind, folder)
    done = 0
    begin = time.monotonic()
    work(kind, folder, done + 1)
    length_s = time.monotonic() - begin
    done = check(kind, folder, 1)
    for _ in range(count):
        start = done + 1

        def loop(pipe: int, start: int = start) -> None:
            for step in range(start, start + 1_000_000):
                work(kind, folder, step)
                os.write(pipe, step.to_bytes(8, "little"))

        process, pipe = in_child(loop)
        until = time.monotonic() + rng.random() * 3 * length_s
        while time.monotonic() < until:
            pass
        os.kill(process, signal.SIGKILL)
        _, status = os.waitpid(process, 0)
        said = rest_of(pipe)
        assert os.WIFSIGNALED(status), said
        done = int.from_bytes(said[-8:], "little") if said else done
        done = check(kind, folder, done)
        if rng.random() < 0.3:  # as at the start of a run
            with FolderLock(str(folder)):
                clean_up(str(folder))
            assert not list(folder.glob(".*.partial"))
            done = check(kind, folder, done)


def fill(kind: str, folder: Path, count: int, seed: int, is_disk: bool) -> None:
    """Fill the disk at random points. Expect one clear error and unchanged files."""
    rng = random.Random(seed)
    prepare(kind, folder)
    work(kind, folder, 1)
    failed = 0
    for _ in range(count):
        limit = rng.randrange(1, 4 * ELEMENTS * 8 if kind != "gzip" else 4096)
        before = {item.name: item.read_bytes() for item in folder.iterdir()}
        if is_disk:
            used = sum(-(-len(content) // 4096) * 4096 for content in before.values())
            resize(folder, used + limit)

        def once(pipe: int, limit: int = limit) -> None:
            if not is_disk:
                resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
            with open(os.devnull, "w") as nowhere:
                os.dup2(pipe, 2)
                sys.stdout = nowhere
                work(kind, folder, 2)

        process, pipe = in_child(once)
        _, status = os.waitpid(process, 0)
        said = rest_of(pipe).decode()
        if is_disk:
            resize(folder, 1 << 30)
        after = {item.name: item.read_bytes() for item in folder.iterdir()}
        if os.waitstatus_to_exitcode(status) == 0:
            for name in set(after) - set(before):
                (folder / name).unlink()
            for name, content in before.items():
                (folder / name).write_bytes(content)
            continue
        failed += 1
        assert os.waitstatus_to_exitcode(status) == 2, said
        assert "Free some space" in said, said
        assert before.items() <= after.items(), sorted(set(after) ^ set(before))
        for name in set(after) - set(before):
            # The checkpoint was saved; the disk was full when the state file was written.
            assert "/checkpoint: cannot be written" in said and is_complete(folder / name.removesuffix(".index")), said
            (folder / name).unlink()
    assert failed > count // 4, f"only {failed} of {count} limits were too small"


def resize(folder: Path, num_bytes: int) -> None:
    """Set the size of the tmpfs mounted at a folder."""
    subprocess.run(["mount", "-o", f"remount,size={num_bytes}", folder], check=True)


if __name__ == "__main__":
    what, chosen, path, number, start_seed = sys.argv[1:]
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    if what == "kill":
        kill(chosen, Path(path), int(number), int(start_seed))
    else:
        fill(chosen, Path(path), int(number), int(start_seed), what == "disk")
