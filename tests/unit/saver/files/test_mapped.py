"""mapped: values as copy-on-write maps of their file."""

import errno
import fcntl
import gc
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from cerebras_tensorflow.errors import CorruptCheckpointError
from cerebras_tensorflow.saver import tf_h5_saver
from cerebras_tensorflow.saver.bundle.writer import BundleWriter

VALUES: dict[str, np.ndarray] = {
    "a/odd": np.arange(3, dtype=np.uint8),  # misaligns the next value in a bundle
    "b/large": np.arange(300_000, dtype=np.float32).reshape(300, 1000),
    "c/text": np.array([b"x", b""], object),
    "d/scalar": np.array(5, np.int64),
    "e/large": np.arange(100_001, dtype=np.float64),
}


@pytest.mark.parametrize("kind", ["h5", "gzip", "bundle"])
def test_mapped_values_equal_the_stored_ones(tmp_path: Path, kind: str) -> None:
    path = tmp_path / ("x" if kind == "bundle" else "x.h5")
    if kind == "bundle":
        with BundleWriter(path) as writer:
            for name, value in VALUES.items():
                writer.add(name, value)
    else:
        tf_h5_saver.save(path, VALUES, compression="gzip" if kind == "gzip" else "none")
    loaded = tf_h5_saver.load(path)
    assert not loaded["b/large"].flags.owndata or kind != "h5"
    assert list(loaded) == sorted(VALUES)
    for name, value in VALUES.items():
        assert loaded[name].dtype == value.dtype and loaded[name].shape == value.shape
        np.testing.assert_array_equal(loaded[name], value)


def test_writing_to_a_mapped_value_does_not_change_the_file(tmp_path: Path) -> None:
    tf_h5_saver.save(tmp_path / "x.h5", VALUES)
    before = (tmp_path / "x.h5").read_bytes()
    loaded = tf_h5_saver.load(tmp_path / "x.h5", ["b/large"])["b/large"]
    loaded[:] = 7
    assert (tmp_path / "x.h5").read_bytes() == before
    tf_h5_saver.save(tmp_path / "x.h5", {"b/large": np.zeros(1)})  # another file under the name
    assert (loaded == 7).all()


def test_a_flipped_bit_under_a_map_is_found(tmp_path: Path) -> None:
    tf_h5_saver.save(tmp_path / "x.h5", VALUES)
    content = bytearray((tmp_path / "x.h5").read_bytes())
    content[content.index(VALUES["b/large"].tobytes()) + 700_001] ^= 1
    (tmp_path / "x.h5").write_bytes(content)
    with pytest.raises(CorruptCheckpointError, match="tensor 'b/large' is damaged"):
        tf_h5_saver.load(tmp_path / "x.h5", ["b/large"])


def test_is_mapped_false_returns_copies(tmp_path: Path) -> None:
    tf_h5_saver.save(tmp_path / "x.h5", VALUES)
    assert tf_h5_saver.load(tmp_path / "x.h5", ["b/large"], is_mapped=False)["b/large"].base is None


def test_maps_need_one_file_descriptor_per_file(tmp_path: Path) -> None:
    tf_h5_saver.save(tmp_path / "x.h5", {f"w{k}": np.full(70_000, k, np.float32) for k in range(40)})
    before = len(os.listdir("/proc/self/fd"))
    loaded = tf_h5_saver.load(tmp_path / "x.h5")
    assert len(os.listdir("/proc/self/fd")) <= before + 2
    last = loaded.pop("w39")
    loaded.clear()
    assert (last == 39).all()
    del last
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) == before


_NEW = np.full((300, 1000), -1, np.float32)
_UPDATE = """
import sys
import numpy as np
from cerebras_tensorflow.saver import tf_h5_saver
path, name = sys.argv[1:]
old = tf_h5_saver.load(path, is_mapped=False)[name]
tf_h5_saver.update(path, {name: np.full(old.shape, -1, old.dtype)})
"""


def updated_by_another_process(path: Path, name: str = "b/large") -> None:
    """Set a tensor to -1 in a process that has nothing mapped."""
    environment = dict(os.environ, PYTHONPATH=str(Path(__file__).parents[4]))
    subprocess.run([sys.executable, "-c", _UPDATE, path, name], check=True, env=environment)


@pytest.mark.parametrize("sharding", [None, 500_000])
@pytest.mark.parametrize("is_elsewhere", [False, True])
def test_an_update_does_not_change_loaded_values(tmp_path: Path, sharding: int | None, is_elsewhere: bool) -> None:
    path = tmp_path / "x.h5"
    tf_h5_saver.save(path, VALUES, sharding)
    loaded = tf_h5_saver.load(path)
    loaded["e/large"][0] = 9
    if is_elsewhere:
        updated_by_another_process(path)
    else:
        tf_h5_saver.update(path, {"b/large": _NEW})
    np.testing.assert_array_equal(loaded["b/large"], VALUES["b/large"])
    assert loaded["e/large"][0] == 9
    again = tf_h5_saver.load(path)
    np.testing.assert_array_equal(again["b/large"], _NEW)
    np.testing.assert_array_equal(again["e/large"], VALUES["e/large"])
    with tf_h5_saver.H5Checkpoint(path) as checkpoint:
        checkpoint.verify()
    assert not [item.name for item in tmp_path.iterdir() if item.name.startswith(".")]


def test_an_update_is_in_place_unless_another_process_maps_the_file(tmp_path: Path) -> None:
    path = tmp_path / "x.h5"
    tf_h5_saver.save(path, VALUES)
    inode = path.stat().st_ino
    loaded = tf_h5_saver.load(path)
    tf_h5_saver.update(path, {"b/large": _NEW})
    assert path.stat().st_ino == inode
    updated_by_another_process(path)
    assert path.stat().st_ino != inode  # because `loaded` is still in use
    inode = path.stat().st_ino
    del loaded
    updated_by_another_process(path)
    assert path.stat().st_ino == inode


def test_an_update_in_a_forked_child_does_not_change_values_of_the_parent(tmp_path: Path) -> None:
    path = tmp_path / "x.h5"
    tf_h5_saver.save(path, VALUES)
    os.chmod(path, 0o640)
    loaded = tf_h5_saver.load(path)
    if not (child := os.fork()):
        try:
            tf_h5_saver.update(path, {"b/large": _NEW})
            os._exit(0)
        finally:
            os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
    np.testing.assert_array_equal(loaded["b/large"], VALUES["b/large"])
    np.testing.assert_array_equal(tf_h5_saver.load(path)["b/large"], _NEW)
    assert path.stat().st_mode & 0o777 == 0o640


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.EIO])
@pytest.mark.parametrize("is_shared", [False, True])
def test_loaded_values_stay_as_they_are_if_locks_fail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, is_shared: bool
) -> None:
    path = tmp_path / "x.h5"
    tf_h5_saver.save(path, VALUES)
    loaded = tf_h5_saver.load(path)
    inode = path.stat().st_ino
    flock = fcntl.flock

    def fail(file: int, how: int) -> None:
        if os.fstat(file).st_ino == inode and how & (fcntl.LOCK_SH if is_shared else fcntl.LOCK_EX):
            raise OSError(number, os.strerror(number))
        flock(file, how)

    monkeypatch.setattr(fcntl, "flock", fail)
    tf_h5_saver.update(path, {"b/large": _NEW})
    monkeypatch.undo()
    np.testing.assert_array_equal(tf_h5_saver.load(path)["b/large"], _NEW)
    if is_shared:  # the map has no lock any more, so another process changes the file in place
        updated_by_another_process(path, "e/large")
    is_in_place = path.stat().st_ino == inode
    assert is_in_place == is_shared
    for name in ("b/large", "e/large"):
        np.testing.assert_array_equal(loaded[name], VALUES[name])
