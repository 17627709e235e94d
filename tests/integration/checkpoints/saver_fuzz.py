"""Feeds mutated checkpoints to the readers: python saver_fuzz.py SECONDS [CORPUS].

A mutated file passes if it is read, or refused with one of our errors. Its end is the error and the line that raised
it. With CORPUS, one mutated file of each distinct end is kept there; the default tests replay the corpus.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path

import h5py
import ml_dtypes
import numpy as np

from cerebras_tensorflow.converter.torch_writer import TorchWriter
from cerebras_tensorflow.saver import tf_h5_saver
from cerebras_tensorflow.saver.bundle.sstable import read_table, write_table
from cerebras_tensorflow.saver.bundle.writer import BundleWriter
from cerebras_tensorflow.saver.checkpoint_reader import open_checkpoint
from cerebras_tensorflow.saver.files.checksum import crc32c
from cerebras_tensorflow.saver.hdf5 import index as h5_index
from cerebras_tensorflow.saver.model_dir.state import CheckpointState, write_state
from cerebras_tensorflow.saver.safetensors_file import SafetensorsWriter
from tests.unit.saver.test_hostile import write_sliced

SEEDS = ["bundle", "ours.h5", "gzip.h5", "shards.h5", "plain.h5", "legacy.h5", "storage.h5", "s.safetensors"]
SEEDS += ["sliced", "torch.bin", "checkpoint"]
# A loop in libhdf5 ends after 10 s of CPU time.
TIMEOUT_S = 200
ODD_JSON = b'-1 0 2147483648 9223372036854775807 1e308 NaN null [] {} "x" "../x" true 3.5 "string"'.split()
ODD_JSON += [b"18446744073709551616", b"[" * 2000]

# Opens each file named on standard input, reads all of it, and prints how that ended. The process ends on any error
# that is not ours, and if it needs more memory than such small files justify.
_READ = """
import faulthandler, resource, sys, traceback
from cerebras_tensorflow.saver.hdf5 import foreign as h5_foreign
from cerebras_tensorflow.errors import CheckpointError
from cerebras_tensorflow.converter.torch_file import TorchReader
from cerebras_tensorflow.saver.checkpoint_reader import checkpoints_newest_first, open_checkpoint
from cerebras_tensorflow.saver.model_dir.state import read_state
resource.setrlimit(resource.RLIMIT_AS, (3 << 30, 3 << 30))
for line in sys.stdin:
    faulthandler.dump_traceback_later(int(sys.argv[1]), exit=True)
    end = "read"
    path = line.strip()
    try:
        if path.endswith("checkpoint"):
            folder = path.removesuffix("checkpoint")
            for listed in checkpoints_newest_first(folder):
                assert listed.startswith(folder), listed
            read_state(folder)
            path = path.replace("checkpoint", "bundle")
        with TorchReader(path) if path.endswith(".bin") else open_checkpoint(path, accept_changed=True) as reader:
            for name in reader.names():
                entry = reader.entry(name)
                reader.read(name)
                if entry.shape:
                    reader.read_slice(name, 0, 1)
            reader.check_complete()
            reader.verify()
    except (CheckpointError, KeyError) as error:
        inner = error
        while inner.__cause__ is not None:
            inner = inner.__cause__
        ours = ("/saver/", "/converter/", "cerebras_tensorflow/files.py")
        frames = [f for f in traceback.extract_tb(inner.__traceback__) if any(part in f.filename for part in ours)]
        end = f"{type(error).__name__}/{type(inner).__name__} {frames[-1].name}:{frames[-1].line}" if frames else "?"
        if "the HDF5 library crashed" in str(error):
            end = "libhdf5"
    print(end.replace("\\n", " "), flush=True)
"""


def write_seeds(folder: Path) -> None:
    """Write a small valid file of each kind."""
    values = {"a/b": np.arange(6, dtype=np.float32).reshape(2, 3), "step": np.int64(3)}
    values["half"] = np.arange(4).astype(ml_dtypes.bfloat16)
    texts = {"text": np.array([b"x", b"yy"], object)}
    with BundleWriter(folder / "bundle", lambda name, size: int(name == "half")) as writer:
        for name, value in {**values, **texts}.items():
            writer.add(name, value)
    tf_h5_saver.save(folder / "ours.h5", {**values, **texts})
    tf_h5_saver.save(folder / "gzip.h5", values, compression="gzip")
    tf_h5_saver.save(folder / "shards.h5", values, lambda name, size: int(name == "half"))
    with h5py.File(folder / "plain.h5", "w", track_order=False) as file:
        file["group/w"] = values["a/b"]
        file["text"] = ["a", "b"]
        file.create_dataset("packed", data=np.zeros((50, 3)), chunks=(7, 3), compression="gzip", fletcher32=True)
    with h5py.File(folder / "legacy.h5", "w") as file:
        for name, value in values.items():
            dataset = file.create_dataset(name.replace("/", "%2F"), data=value.view("i2") if name == "half" else value)
            dataset.attrs["__H5_TYPE__"] = "NumpyArrayH5Type"
            dataset.attrs["is_bfloat16"] = name == "half"
        text = file.create_dataset("text", data=h5py.Empty("f"))
        text.attrs["__H5_TYPE__"], text.attrs["string_value"] = "StringH5Type", "words"
        pickled = file.create_dataset("object", data=h5py.Empty("f"))
        pickled.attrs["__H5_TYPE__"], pickled.attrs["object_value"] = "ObjectH5Type", b"\x80\x04N.".hex()
    with h5py.File(folder / "storage.h5", "w") as file:
        file.attrs["__version__"], file.attrs["__SUCCESS__"] = 0.5, True
        file.create_dataset("w", data=values["a/b"]).attrs["__NUMPY__"] = True
        scalar = {"scalar_value": 1234, "__TYPE__": "ScalarSerializer", "__NONE__": True}
        file.attrs["step.__metadata__"] = json.dumps({"__objects__": ["step"], "step.__metadata__": scalar})
    with open_checkpoint(folder / "ours.h5") as reader:
        entries = {name: reader.entry(name) for name in values}
    with SafetensorsWriter(folder / "s.safetensors", entries) as writer:
        for name in entries:
            writer.add(name, values[name])
    write_sliced(folder / "sliced", (4, 4), [((0, 2), (0, 4)), ((2, 2), (0, 1)), ((2, 2), (1, 3))])
    with TorchWriter(folder / "torch.bin", key="model") as writer:
        for name in entries:
            writer.add(name, values[name])
    write_state(folder, CheckpointState(str(folder / "bundle"), (str(folder / "bundle"),), (5.0,), 4.0))


def mutated(data: bytes, rng: random.Random) -> bytes:
    """Return bytes with a few of them changed, cut, repeated or set to extremes."""
    out = bytearray(data)
    for _ in range(rng.randrange(1, 4)):
        position = rng.randrange(len(out)) if out else 0
        choice = rng.randrange(5)
        if choice == 0 and out:
            out[position] ^= 1 << rng.randrange(8)
        elif choice == 1 and out:
            out[position : position + 8] = rng.choice([b"\xff" * 8, b"\0" * 8, b"\x7f" + b"\xff" * 7])
        elif choice == 2 and rng.random() < 0.3:
            del out[position:]
        elif choice == 3:
            out[position:position] = out[position : position + rng.randrange(64)]
        else:
            del out[position : position + rng.randrange(1, 16)]
    return bytes(out)


def mutated_json(text: bytes, rng: random.Random) -> bytes:
    """Return JSON with a number, a string or a list replaced by an unexpected value."""
    odd = rng.choice(ODD_JSON)
    places = [match.span() for match in re.finditer(rb'-?\d+|"[^"]*"|\[[^\[\]]*\]', text)]
    start, stop = rng.choice(places)
    return text[:start] + odd + text[stop:]


def mutated_zip(data: bytes, rng: random.Random) -> bytes:
    """Return a zip file with changed bytes in one member and a valid checksum."""
    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as source, zipfile.ZipFile(out, "w") as target:
        chosen = rng.choice([name for name in source.namelist() for _ in range(1 + 8 * name.endswith(".pkl"))])
        for name in source.namelist():
            content = source.read(name)
            target.writestr(name, mutated(content, rng) if name == chosen else content)
    return out.getvalue()


def mutate(data: bytes, name: str, rng: random.Random) -> bytes:
    """Return a mutated file; half the time with valid checksums, as an attacker would write it."""
    if rng.random() < 0.5:
        return mutated(data, rng)
    if name.endswith(".index"):
        pairs = list(read_table(data))
        chosen = rng.randrange(len(pairs))
        key, value = pairs[chosen]
        pairs[chosen] = (mutated(key, rng), value) if rng.random() < 0.2 else (key, mutated(value, rng))
        return write_table(sorted(dict(pairs).items()))
    if name.endswith(".h5") and len(data) > 36 and data[-36:-28] == b"\x93CBTFIDX":
        _, end, size, _, rest, _ = h5_index._TAIL.unpack(data[-36:])
        body = mutated_json(data[end : end + size], rng)
        head = h5_index._TAIL.pack(data[-36:-28], end, len(body), crc32c(body), rest, 0)[:-4]
        return data[:end] + body + head + crc32c(head).to_bytes(4, "little")
    if name.endswith(".bin"):
        return mutated_zip(data, rng)
    if name.endswith(".safetensors"):
        size = int.from_bytes(data[:8], "little")
        header = mutated_json(data[8 : 8 + size], rng)
        return len(header).to_bytes(8, "little") + header + data[8 + size :]
    return mutated(data, rng)


class Reader:
    """A process that reads files and reports how that ended. No file may end the process."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None

    def end_of(self, path: Path) -> str:
        """Return how reading ended; "libhdf5" if libhdf5 crashed or hung, in its own process.

        Raises:
            AssertionError: If reading ended the process: with an error that is not ours, a signal, or too late.
        """
        if self._process is None:
            environment = dict(os.environ, MALLOC_ARENA_MAX="1", PYTHONPATH=os.pathsep.join(sys.path))
            pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
            words = [sys.executable, "-c", _READ, str(TIMEOUT_S)]
            self._process = subprocess.Popen(words, text=True, env=environment, **pipes)
        process = self._process
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(f"{path}\n")
        process.stdin.flush()
        line = process.stdout.readline()
        if line:
            return line.strip()
        self._process = None
        _, error = process.communicate()
        raise AssertionError(f"{path}: exit {process.returncode}\n{error}")

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None


def mutants(folder: Path, seconds: float, seed: int) -> Iterator[tuple[str, Path, Path]]:
    """Write mutated checkpoints in `folder/work`, one after the other; yield (seed, path to open, file changed)."""
    rng = random.Random(seed)
    originals, work = folder / "seeds", folder / "work"
    originals.mkdir()
    write_seeds(originals)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        name = rng.choice(SEEDS)
        shutil.rmtree(work, ignore_errors=True)
        shutil.copytree(originals, work)
        stem = name.removesuffix(".h5")
        target = rng.choice([file for file in sorted(work.iterdir()) if file.name.startswith(stem)])
        target.write_bytes(mutate(target.read_bytes(), target.name, rng))
        yield name, work / name, target


def fuzz(folder: Path, seconds: float, seed: int, corpus: Path | None = None) -> tuple[int, int, dict[str, int]]:
    """Feed mutants to the readers; return (files tried, crashes of libhdf5, count of each end)."""
    reader, tried, ends = Reader(), 0, dict[str, int]()
    try:
        for name, path, target in mutants(folder, seconds, seed):
            content = target.read_bytes()
            kept = f"{name}--{target.name}--{hashlib.sha256(content).hexdigest()[:12]}"
            try:
                end = reader.end_of(path)
            except AssertionError:
                shutil.copy(target, Path(tempfile.gettempdir()) / kept)
                raise
            tried += 1
            label = f"{name.partition('.')[0]} {end}"
            ends[label] = ends.get(label, 0) + 1
            if corpus is not None and ends[label] == 1 and end not in ("read", "libhdf5"):
                corpus.mkdir(exist_ok=True)
                (corpus / kept).write_bytes(content)
    finally:
        reader.close()
    return tried, sum(count for end, count in ends.items() if end.endswith("libhdf5")), ends


def replay(folder: Path, corpus: Path) -> int:
    """Read every file of a corpus in place of its seed file; return the number of files."""
    originals = folder / "seeds"
    originals.mkdir()
    write_seeds(originals)
    reader = Reader()
    files = sorted(corpus.iterdir())
    try:
        for file in files:
            name, target, _ = file.name.split("--")
            work = folder / "work"
            shutil.rmtree(work, ignore_errors=True)
            shutil.copytree(originals, work)
            shutil.copy(file, work / target)
            reader.end_of(work / name)
    finally:
        reader.close()
    return len(files)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        start_seed = int(time.time())
        where = Path(sys.argv[2]) if len(sys.argv) > 2 else None
        number, died, counted = fuzz(Path(scratch), float(sys.argv[1]), start_seed, where)
    print(f"seed {start_seed}: {number} files, {died} crashed libhdf5, {len(counted)} different ends")
    for label, count in sorted(counted.items()):
        print(f"{count:6} {label}")
