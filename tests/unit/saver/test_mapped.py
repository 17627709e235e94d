"""mapped: values as copy-on-write maps of their file."""

from pathlib import Path

import numpy as np
import pytest

from cerebras_tensorflow.errors import CorruptCheckpointError
from cerebras_tensorflow.saver import tf_h5_saver
from cerebras_tensorflow.saver.tensor_bundle import BundleWriter

VALUES: dict[str, np.ndarray] = {
    "a/odd": np.arange(3, dtype=np.uint8),  # puts what follows off its natural alignment in a bundle
    "b/large": np.arange(300_000, dtype=np.float32).reshape(300, 1000),
    "c/text": np.array([b"x", b""], object),
    "d/scalar": np.array(5, np.int64),
    "e/large": np.arange(100_001, dtype=np.float64),
}


@pytest.mark.parametrize("kind", ["h5", "gzip", "bundle"])
def test_mapped_values_are_the_stored_ones(tmp_path: Path, kind: str) -> None:
    path = tmp_path / ("x" if kind == "bundle" else "x.h5")
    if kind == "bundle":
        with BundleWriter(path) as writer:
            for name, value in VALUES.items():
                writer.add(name, value)
    else:
        tf_h5_saver.save(path, VALUES, compression="gzip" if kind == "gzip" else "none")
    loaded = tf_h5_saver.load(path, is_mapped=True)
    assert list(loaded) == sorted(VALUES)
    for name, value in VALUES.items():
        assert loaded[name].dtype == value.dtype and loaded[name].shape == value.shape
        np.testing.assert_array_equal(loaded[name], value)


def test_writing_to_a_mapped_value_leaves_the_file(tmp_path: Path) -> None:
    tf_h5_saver.save(tmp_path / "x.h5", VALUES)
    before = (tmp_path / "x.h5").read_bytes()
    loaded = tf_h5_saver.load(tmp_path / "x.h5", ["b/large"], is_mapped=True)["b/large"]
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
        tf_h5_saver.load(tmp_path / "x.h5", ["b/large"], is_mapped=True)
