"""The published readers read our HDF5 files, and we read theirs, value for value. Needs the package index."""

import hashlib
import json
import subprocess
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from cerebras_tensorflow.saver import tf_h5_saver
from cerebras_tensorflow.saver.checkpoint_reader import open_checkpoint

pytestmark = pytest.mark.interop


# Reads with both published readers; prints type, shape and checksum of every value.
_READ = """
import hashlib, json, sys, urllib.parse
import numpy as np
from cerebras.appliance.saver.h5_saver import H5Saver
from cerebras.appliance.storage import DeserializationContext, StorageReader

def described(value):
    value = np.asarray(getattr(value, "value", value))
    return [value.dtype.name, list(value.shape), hashlib.sha256(np.ascontiguousarray(value).tobytes()).hexdigest()]

path = sys.argv[1]
legacy = H5Saver().load(path)
reader = StorageReader.get(path)
current = {}
for name in legacy:
    key = urllib.parse.quote(name, safe="")
    current[name] = DeserializationContext(key, reader.read(key)[1]).deserialize(reader.read(key)[0])
print(json.dumps([{n: described(v) for n, v in values.items()} for values in (legacy, current)]))
"""

_WRITE = """
import sys
import numpy as np
from cerebras.appliance.storage import SerializationContext, StorageWriter

rng = np.random.default_rng(5)
values = {f"layer.{k}": rng.random((300, 70)).astype(t) for k, t in enumerate(["f2", "f4", "f8"])}
values |= {"step": np.array(7), "flags": np.array([True, False]), "empty": np.zeros((0, 3), np.float32)}
np.savez(sys.argv[2], **values)
with (writer := StorageWriter.get(sys.argv[1])):
    for key, value in values.items():
        serialized = SerializationContext(sys.argv[1], key).serialize(value)
        writer.write(key, serialized.object, serialized.metadata)
"""

VALUES: dict[str, Any] = {
    "dense/kernel:0": np.arange(70_000, dtype=np.float32).reshape(7, 100, 100),
    "global_step": np.int64(5),
    "half": np.array([1.5, -65504], np.float16),
    "flags": np.array([[True], [False]]),
    "empty": np.zeros((0, 3), np.float64),
    "name \u00fc/\u540d %2F": np.arange(3, dtype=np.uint8),
    "complex": np.ones(3, np.complex64),
    "..": np.arange(3, dtype=np.int16),
}


def described(value: Any) -> list[Any]:
    value = np.asarray(value)
    return [value.dtype.name, list(value.shape), hashlib.sha256(value.tobytes()).hexdigest()]


@pytest.mark.parametrize("compression", ["none", "gzip", "lz4"])
def test_both_published_readers_accept_our_files(tmp_path: Path, published_python: str, compression: str) -> None:
    bfloat16 = np.arange(6).astype(ml_dtypes.bfloat16).reshape(2, 3)
    tf_h5_saver.save(tmp_path / "c.h5", {**VALUES, "bf16": bfloat16}, compression=compression)
    done = subprocess.run(
        [published_python, "-c", _READ, str(tmp_path / "c.h5")], check=True, capture_output=True, text=True
    )
    expected = {name: described(value) for name, value in VALUES.items()} | {"bf16": described(bfloat16.view(np.int16))}
    for values in json.loads(done.stdout.splitlines()[-1]):
        assert values == expected


def test_each_shard_is_accepted_by_both_published_readers(tmp_path: Path, published_python: str) -> None:
    tf_h5_saver.save(tmp_path / "c.h5", VALUES, 100)
    names: set[str] = set()
    for path in sorted(tmp_path.glob("c-*.h5")):
        done = subprocess.run([published_python, "-c", _READ, str(path)], check=True, capture_output=True, text=True)
        for values in json.loads(done.stdout.splitlines()[-1]):
            assert values == {name: described(VALUES[name]) for name in values}
        names |= set(values)
    assert names == set(VALUES)


def test_we_read_what_the_published_writer_writes(tmp_path: Path, published_python: str) -> None:
    subprocess.run([published_python, "-c", _WRITE, str(tmp_path / "c.h5"), str(tmp_path / "c.npz")], check=True)
    expected = np.load(tmp_path / "c.npz")
    with open_checkpoint(tmp_path / "c.h5") as reader:
        assert reader.names() == sorted(expected.files)
        for name in reader.names():
            assert described(reader.read(name)) == described(expected[name])
        reader.verify()
