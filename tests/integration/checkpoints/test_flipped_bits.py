"""A flipped bit in a checkpoint, a state file, a compiled program or a weight store is found or changes nothing."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from cerebras_tensorflow.compiler import cache
from cerebras_tensorflow.errors import CheckpointError, StoreError
from cerebras_tensorflow.graph.nodes import GraphDef, NodeDef
from cerebras_tensorflow.graph.program import Program, WeightSpec
from cerebras_tensorflow.runtime.weight_store.file import FileStore
from cerebras_tensorflow.runtime.weight_store.interface import WeightStore
from cerebras_tensorflow.runtime.weight_store.mapped import MappedStore
from cerebras_tensorflow.saver import integrity, tf_h5_saver
from cerebras_tensorflow.saver.bundle.writer import BundleWriter
from cerebras_tensorflow.saver.checkpoint_reader import checkpoints_newest_first, open_checkpoint
from cerebras_tensorflow.saver.model_dir.state import CheckpointState, write_state

VALUES = {f"layer_{k}/kernel": np.random.default_rng(k).random((50, k + 1)) for k in range(12)}
WEIGHT = np.random.default_rng(1).random((700, 100), np.float32)
SPECS = (WeightSpec("layer/kernel", "float32", WEIGHT.shape, WEIGHT.nbytes),)

Read = Callable[[], object]
"""Reads everything. It returns the values, or None if it refuses them."""


@contextmanager
def checkpoint(kind: str, folder: Path) -> Iterator[Read]:
    """A checkpoint in one format."""
    path = folder / ("c" if kind == "bundle" else "c.h5")
    if kind == "bundle":
        with BundleWriter(path, lambda name, size: int(name > "layer_5")) as writer:
            for name, value in VALUES.items():
                writer.add(name, value)
    else:
        tf_h5_saver.save(path, VALUES, 20_000 if kind == "shards" else None, kind if kind == "lz4" else "none")

    def read() -> object:
        try:
            with open_checkpoint(path) as reader:
                return {name: reader.read(name).tobytes() for name in reader.names()}
        except CheckpointError:
            return None

    yield read


@contextmanager
def state(kind: str, folder: Path) -> Iterator[Read]:
    """The state file of two checkpoints. A run may fall back to the older one, whose values are its own."""
    for step in range(2):
        with BundleWriter(folder / f"model.ckpt-{step}") as writer:
            writer.add("w", np.full(1000, step))
    paths = tuple(str(folder / f"model.ckpt-{step}") for step in range(2))
    write_state(folder, CheckpointState(paths[1], paths, (5.0, 6.0), 6.0))

    def read() -> object:
        for path in checkpoints_newest_first(folder):
            if integrity.find_damage(path) is None:
                with open_checkpoint(path) as reader:
                    assert set(reader.read("w")) == {paths.index(path)}
                return path if path == paths[1] else None
        return None

    yield read


@contextmanager
def program(kind: str, folder: Path) -> Iterator[Read]:
    """A compiled program in its cache."""
    graph = GraphDef(node=[NodeDef(name=f"node_{number}", op="NoOp") for number in range(100)])
    order = tuple(node.name for node in graph.node)
    compiled = Program("weight_streaming", graph, "node_99", SPECS, (), window_bytes=64, order=order)
    path = folder / "tfcs_1"
    cache.save(path, compiled, {})
    yield lambda: cache.load(path)


@contextmanager
def store(kind: str, folder: Path) -> Iterator[Read]:
    """A weight store. An adopted weight is still in its checkpoint."""
    opened: WeightStore = MappedStore(SPECS, folder) if kind == "mapped" else FileStore(SPECS, folder)
    if kind == "adopted":
        path = folder / "c"
        with BundleWriter(path) as writer:
            writer.add("w", WEIGHT)
        with open_checkpoint(path) as reader:
            where = reader.extent("w")
        assert where is not None and opened.adopt(0, where.path, where.offset, where.crc)
    else:
        opened.write(0, WEIGHT)
    opened.flush()

    def read() -> object:
        try:
            return opened.read(0).tobytes()
        except (StoreError, CheckpointError):
            return None

    try:
        yield read
    finally:
        opened.close()


KINDS = {
    **dict.fromkeys(["bundle", "h5", "lz4", "shards"], checkpoint),
    "state": state,
    "program": program,
    **dict.fromkeys(["file", "mapped", "adopted"], store),
}


def flip(path: Path, rng: random.Random) -> str:
    """Flip one bit of a file, and return its place."""
    byte, bit = rng.randrange(path.stat().st_size), rng.randrange(8)
    with open(path, "r+b", buffering=0) as file:
        (value,) = os.pread(file.fileno(), 1, byte)
        os.pwrite(file.fileno(), bytes([value ^ 1 << bit]), byte)
    return f"bit {bit} of byte {byte} of {path.name}"


def count_found(kind: str, folder: Path, count: int) -> int:
    """Flip bits, one at a time; return how many were found. No other may change a value."""
    rng, found, done = random.Random(kind), 0, 0
    while done < count:
        work = folder / str(done)
        work.mkdir()
        with KINDS[kind](kind, work) as read:
            expected = read()
            files = sorted(path for path in work.rglob("*") if path.is_file() and path.stat().st_size)
            contents = {path: path.read_bytes() for path in files}
            # A store refuses all use after it has found damage.
            for _ in range(1 if KINDS[kind] is store else min(count, 100)):
                place = flip(rng.choice(files), rng)
                result = read()
                assert result is None or result == expected, place
                found += result is None
                done += 1
                for path, content in contents.items() if KINDS[kind] is not store else ():
                    path.write_bytes(content)
            assert KINDS[kind] is store or read() == expected
    return found


@pytest.mark.parametrize(
    "count", [pytest.param(10, id="ten"), pytest.param(1000, id="a thousand", marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("kind", KINDS)
def test_a_flipped_bit_is_found_or_changes_nothing(
    kind: str, count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CEREBRAS_HOME", str(tmp_path / "home"))
    found = count_found(kind, tmp_path, count)
    print(f"{kind}: {count} bits flipped, {found} found, 0 wrong values")
    assert found > 0
