"""hdf5.foreign: files by other writers, including hostile ones, built with plain h5py from the format notes."""

import json
from pathlib import Path

import h5py
import ml_dtypes
import numpy as np
import pytest

from cerebras_tensorflow.errors import CheckpointError, CorruptCheckpointError
from cerebras_tensorflow.saver.checkpoint_reader import open_checkpoint
from cerebras_tensorflow.saver.hdf5.foreign import ForeignH5Reader

BFLOAT16 = np.array([1.5, -2.0], ml_dtypes.bfloat16)


def test_the_legacy_format_is_read(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "c.h5", "w") as file:
        kernel = file.create_dataset("dense%2Fkernel", data=np.ones((2, 3), np.float32), compression="gzip")
        kernel.attrs.update({"__H5_TYPE__": "NumpyArrayH5Type", "is_bfloat16": False})
        half = file.create_dataset("half", data=BFLOAT16.view(np.uint16))
        half.attrs.update({"__H5_TYPE__": "TorchTensorH5Type", "is_bfloat16": True})
        file.create_dataset("step", data=7).attrs["__H5_TYPE__"] = "ScalarH5Type"
        file.create_dataset("text", data=h5py.Empty("f")).attrs.update(
            {"__H5_TYPE__": "StringH5Type", "string_value": "h\u00e9llo"}
        )
        file.create_dataset("nothing", data=h5py.Empty("f")).attrs["__H5_TYPE__"] = "NoneH5Type"
        # A pickle that would touch a file if anything loaded it.
        harm = f"cposix\nsystem\n(S'touch {tmp_path}/harm'\ntR.".encode().hex()
        file.create_dataset("object", data=h5py.Empty("f")).attrs.update(
            {"__H5_TYPE__": "ObjectH5Type", "object_value": harm}
        )
        file.create_dataset("later", data=h5py.Empty("f")).attrs["__H5_TYPE__"] = "DeferredH5Tensor"
        file["alias"] = file["step"]
        file["soft"] = h5py.SoftLink("/step")
        file["dangling"] = h5py.SoftLink("/nowhere")
    with open_checkpoint(tmp_path / "c.h5") as reader:
        assert isinstance(reader, ForeignH5Reader)
        assert reader.names() == ["alias", "dense/kernel", "half", "soft", "step", "text"]
        assert reader.read("half").tolist() == BFLOAT16.tolist()
        assert reader.read_slice("half", 1, 2).dtype == ml_dtypes.bfloat16
        assert reader.read("alias") == reader.read("soft") == 7
        assert reader.read("text").tolist() == "h\u00e9llo".encode()
        assert sorted(reader.skipped) == ["dangling", "later", "nothing", "object"]
        assert reader.object_bytes("object").startswith(b"cposix")
        with pytest.raises(KeyError, match="no pickled object 'step'"):
            reader.object_bytes("step")
        with pytest.raises(KeyError, match="pickled Python object, which is never loaded"):
            reader.read("object")
        reader.verify()
    assert not (tmp_path / "harm").exists()


def test_the_current_format_is_read(tmp_path: Path) -> None:
    leaves = {
        "d.0": {"scalar_value": 0.1},
        "n": {"scalar_value": 3},
        "s": {"string_value": "text"},
        "none": {"__TYPE__": "NoneSerializer"},
        "tied": {"__LINKED__": True, "key": "m.w"},
        "m.w": {"__TYPE__": "TorchTensorSerializer", "dtypes": ["torch.bfloat16"]},
    }
    with h5py.File(tmp_path / "c.h5", "w") as file:
        file.attrs.update({"__version__": 0.5, "__SUCCESS__": True})
        dataset = file.create_dataset("m.w", data=BFLOAT16.view(np.int16), chunks=(2,))
        dataset.attrs.update({"__TYPE__": "TorchTensorSerializer", "__NUMPY__": True})
        dataset.attrs.create("dtypes", ["torch.bfloat16"], dtype=h5py.string_dtype())
        for name, leaf in leaves.items():
            key = f"{name}.__metadata__"
            file.attrs[key] = json.dumps({"__spec__": [], "__objects__": [name], key: leaf})
        file.create_dataset("a/b", data=np.arange(3)).attrs["__NUMPY__"] = True
    with open_checkpoint(tmp_path / "c.h5") as reader:
        assert reader.names() == ["a/b", "d.0", "m.w", "n", "s", "tied"]
        assert reader.read("d.0") == 0.1
        assert reader.read("tied").tolist() == BFLOAT16.tolist()
        assert reader.skipped == {"none": "of kind NoneSerializer"}


def test_the_oldest_format_is_read(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "c.h5", "w") as file:
        file["w"] = np.ones(3)
        file.create_dataset("none", data=h5py.Empty("f")).attrs["is_none"] = True
        file.create_dataset("text", data=h5py.Empty("f")).attrs.update({"is_string": True, "string_val": "t"})
        file.create_dataset("step", data=3).attrs["is_scalar"] = True
        file.create_dataset("half", data=BFLOAT16.view(np.int16)).attrs["is_bfloat16"] = True
        file.create_dataset("zeros", data=h5py.Empty("f")).attrs.update(
            {"is_constructible": True, "shape": [2, 2], "fill_value": 0.5}
        )
    with open_checkpoint(tmp_path / "c.h5") as reader:
        assert reader.names() == ["half", "step", "text", "w", "zeros"]
        assert reader.read("zeros").tolist() == [[0.5, 0.5], [0.5, 0.5]]


def test_a_plain_file_with_groups_filters_and_odd_types_is_read(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "c.h5", "w") as file:
        file["layer/kernel"] = np.arange(6, dtype=">f4").reshape(2, 3)
        file.create_dataset(
            "big", data=np.arange(5000.0), chunks=(100,), compression="gzip", shuffle=True, fletcher32=True
        )
        file["flags"] = np.array([True, False])
        file["text"] = ["a", "b\u00fc"]
        file["loop/self"] = h5py.SoftLink("/")
        file["loop/hard"] = file["loop"]
        file["table"] = np.zeros(2, [("a", "i4"), ("b", "f8")])
    with open_checkpoint(tmp_path / "c.h5") as reader:
        assert reader.entry("layer/kernel").dtype == np.dtype("<f4")
        assert reader.read("layer/kernel").tolist() == [[0, 1, 2], [3, 4, 5]]
        assert reader.read("text").tolist() == [b"a", "b\u00fc".encode()]
        assert "table" in reader.skipped  # type: ignore[attr-defined]
        reader.verify()


def test_links_and_storage_outside_the_file_are_refused(tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(b"\0" * 64)
    with h5py.File(tmp_path / "link.h5", "w") as file:
        file["w"] = h5py.ExternalLink("/etc/other.h5", "/w")
    with h5py.File(tmp_path / "raw.h5", "w") as file:
        file.create_dataset("w", (8,), "f8", external=[(str(tmp_path / "secret"), 0, 64)])
    with h5py.File(tmp_path / "virtual.h5", "w") as file:
        layout = h5py.VirtualLayout((8,), "f8")
        layout[:] = h5py.VirtualSource("other.h5", "w", (8,))
        file.create_virtual_dataset("w", layout)
    for name in ("link", "raw", "virtual"):
        with pytest.raises(CheckpointError, match="another file"):
            open_checkpoint(tmp_path / f"{name}.h5")


def test_a_huge_declared_size_is_refused_before_memory_is_taken(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "c.h5", "w") as file:
        file.create_dataset("bomb", (1 << 40,), "f4", chunks=(1 << 20,), compression="gzip")
    with pytest.raises(CorruptCheckpointError, match="declares"):
        open_checkpoint(tmp_path / "c.h5")


def test_a_file_that_is_not_a_checkpoint_is_refused(tmp_path: Path) -> None:
    (tmp_path / "c.h5").write_bytes(b"\x89HDF\r\n\x1a\n" + b"\0" * 100)
    with pytest.raises(CorruptCheckpointError, match="HDF5 cannot open it"):
        open_checkpoint(tmp_path / "c.h5")
    (tmp_path / "notes.txt").write_text("hello")
    with pytest.raises(CheckpointError, match="neither HDF5 nor safetensors"):
        open_checkpoint(tmp_path / "notes.txt")
