"""Several processes write one checkpoint in object storage."""

from __future__ import annotations

import functools
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cerebras_tensorflow.errors import CheckpointError
from cerebras_tensorflow.locations import ObjectLocation, object_location
from cerebras_tensorflow.saver import tf_h5_saver
from cerebras_tensorflow.saver.checkpoint_reader import open_checkpoint
from cerebras_tensorflow.saver.interface import TensorEntry, as_bytes
from cerebras_tensorflow.saver.objects import parallel
from cerebras_tensorflow.saver.objects.store import Bucket
from tests.unit.faulty_proxy import FaultyProxy

VALUES: dict[str, Any] = {
    "bias": np.arange(3, dtype=np.float64),
    "empty": np.zeros((0, 4), np.float32),
    "kernel": np.arange(30_001, dtype=np.int32),
    "scale": np.float32(2),
    "table": np.arange(50_000, dtype=np.float16).reshape(100, 500),
}
ENTRIES = {
    name: TensorEntry(np.asarray(value).dtype, np.shape(value), np.asarray(value).nbytes)
    for name, value in VALUES.items()
}
WRITER = """
import sys
from tests.unit.saver.objects import test_parallel as test
test.parallel.OBJECT_BYTES = 20_000
plan = test.parallel.Plan.from_json(sys.argv[1])
rank, count = int(sys.argv[2]), int(sys.argv[3])
print(test.parallel.write_part(test.place(), plan, plan.share(rank, count), test.read).to_json())
"""


def place() -> ObjectLocation:
    location = object_location("s3://bucket/run/model.ckpt-5")
    assert location is not None
    return location


def read(name: str, first: int, last: int) -> Any:
    return as_bytes(np.asarray(VALUES[name]))[first:last]


@pytest.fixture(autouse=True)
def _small_objects(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parallel, "OBJECT_BYTES", 20_000)


def test_names_and_layout_do_not_depend_on_the_number_of_writers(proxy: FaultyProxy) -> None:
    layouts = []
    for count in (1, 2, 3, 20):
        plan = parallel.start(place(), ENTRIES)
        write = functools.partial(parallel.write_part, place(), plan, read=read)
        with ThreadPoolExecutor(count) as pool:
            parts = list(pool.map(write, [plan.share(rank, count) for rank in range(count)]))
        parallel.commit(place(), plan, parts)
        with open_checkpoint(str(place())) as reader:
            manifest = reader.manifest  # type: ignore[attr-defined]
            layouts.append((manifest.records, manifest.sizes, manifest.checks))
            assert reader.verify() == sum(entry.num_bytes for entry in ENTRIES.values())
    names = {item.key.rpartition("/")[2] for item in Bucket(place()).list("run")}
    assert names == {"manifest.json", *manifest.objects}  # nothing is left of the replaced ones
    assert all(layout == layouts[0] for layout in layouts)
    loaded = tf_h5_saver.load(str(place()))
    for name, value in VALUES.items():
        np.testing.assert_array_equal(loaded[name], value, strict=True)


def test_processes_write_the_parts_that_they_own(proxy: FaultyProxy) -> None:
    plan = parallel.start(place(), ENTRIES)
    root = Path(__file__).parents[4]
    command = [sys.executable, "-c", WRITER, plan.to_json()]
    children = [
        subprocess.Popen([*command, str(rank), "2"], cwd=root, stdout=subprocess.PIPE, text=True) for rank in range(2)
    ]
    outputs = [child.communicate(timeout=60)[0] for child in children]
    first, second = (parallel.Part.from_json(output) for output in outputs)
    with pytest.raises(CheckpointError, match="objects are not written"):
        parallel.commit(place(), plan, [first])
    parallel.commit(place(), plan, [second, first])
    np.testing.assert_array_equal(tf_h5_saver.load(str(place()))["table"], VALUES["table"])


def test_only_one_of_two_groups_commits_and_the_other_leaves_nothing(proxy: FaultyProxy) -> None:
    plans = [parallel.start(place(), ENTRIES) for _ in range(2)]
    parts = [parallel.write_part(place(), plan, plan.share(0, 1), read) for plan in plans]
    parallel.commit(place(), plans[1], [parts[1]])
    with pytest.raises(CheckpointError, match="another process has written this checkpoint meanwhile"):
        parallel.commit(place(), plans[0], [parts[0]])
    third = parallel.start(place(), ENTRIES)
    parallel.write_part(place(), third, [0], read)
    parallel.discard(place(), third)
    left = [item.key for item in Bucket(place()).list("run") if plans[1].unique not in item.key]
    assert [key.rpartition("/")[2] for key in left] == ["manifest.json"]
    tf_h5_saver.load(str(place()))


def test_a_run_of_another_size_is_refused(proxy: FaultyProxy) -> None:
    plan = parallel.start(place(), ENTRIES)
    with pytest.raises(ValueError, match="kernel: 1 bytes for the run from 0 to 20000"):
        parallel.write_part(
            place(),
            plan,
            range(len(plan.objects)),
            lambda name, first, last: b"x" * (1 if name == "kernel" else last - first),
        )
