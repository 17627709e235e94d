"""torch_state and safetensors_format: nested states in HDF5 and in safetensors."""

import collections
import json
import math
from pathlib import Path
from typing import Any

import h5py
import ml_dtypes
import numpy as np
import pytest

from cerebras_tensorflow.errors import CheckpointError, CorruptCheckpointError
from cerebras_tensorflow.saver import torch_state
from cerebras_tensorflow.saver.checkpoint_reader import open_checkpoint
from cerebras_tensorflow.saver.interface import TensorEntry
from cerebras_tensorflow.saver.safetensors_file import SafetensorsWriter

STATE = {
    "a": {"b": 0.1, "c": 0.001, 3: -math.inf},
    "d": [0.1, 2**70, "text", None, True],
    "model": {"w": np.arange(6, dtype=np.float32).reshape(2, 3), "half": np.ones(2, ml_dtypes.bfloat16)},
    "empty": [{}, [], ()],
    "kinds": [np.float16(1.5), np.bool_(True), np.dtype("i2"), collections.OrderedDict(b=1, a=2)],
    "pair": (np.int64(3), {"deep": np.zeros(0)}),
}


def equal(one: Any, other: Any) -> bool:
    if isinstance(one, np.ndarray | np.generic):
        return bool(
            type(one) is type(other)
            and one.dtype == other.dtype
            and one.shape == other.shape
            and one.tobytes() == other.tobytes()
        )
    if isinstance(one, dict):
        return type(one) is type(other) and list(one) == list(other) and all(equal(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return type(one) is type(other) and len(one) == len(other) and all(map(equal, one, other))
    return type(one) is type(other) and one == other


def test_a_nested_state_is_read_back(tmp_path: Path) -> None:
    torch_state.save(STATE | {"z": 1 - 2j}, tmp_path / "c.h5")
    assert equal(torch_state.load(tmp_path / "c.h5"), STATE | {"z": 1 - 2j})
    with open_checkpoint(tmp_path / "c.h5") as reader:
        assert reader.names()[:7] == ["__structure__", "a.3", "a.b", "a.c", "d.0", "d.2", "d.4"]
        assert reader.read("a.b") == 0.1


@pytest.mark.parametrize(
    ("state", "error"),
    [
        ({"a.b": np.ones(1), "a": {"b": np.ones(1)}}, ValueError),
        ({"a": object()}, TypeError),
        ({"a": np.dtype("S3")}, ValueError),
        ({(1, 2): 3}, TypeError),
    ],
)
def test_an_unsupported_state_is_refused_and_writes_nothing(tmp_path: Path, state: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        torch_state.save(state, tmp_path / "c.h5")
    assert list(tmp_path.iterdir()) == []


def test_safetensors_both_ways(tmp_path: Path) -> None:
    torch_state.save(STATE, tmp_path / "c.h5")
    report = torch_state.to_safetensors(tmp_path / "c.h5", tmp_path / "c.safetensors")
    assert sorted(report.skipped) == ["__structure__", "d.2", "kinds.2"]
    torch_state.from_safetensors(tmp_path / "c.safetensors", tmp_path / "back.h5")
    flat = torch_state.load(tmp_path / "back.h5")
    assert equal(flat["model.w"], STATE["model"]["w"]) and equal(flat["model.half"], STATE["model"]["half"])


def test_a_safetensors_file_has_the_published_layout(tmp_path: Path) -> None:
    with SafetensorsWriter(tmp_path / "s.safetensors", {"w": TensorEntry(np.dtype("<i2"), (2,), 4)}) as writer:
        writer.add("w", np.array([1, 2], "<i2"))
    data = (tmp_path / "s.safetensors").read_bytes()
    size = int.from_bytes(data[:8], "little")
    assert json.loads(data[8 : 8 + size]) == {"w": {"dtype": "I16", "shape": [2], "data_offsets": [0, 4]}}
    assert data[8 + size :] == b"\x01\0\x02\0" and size % 8 == 0


def test_declared_tensors_must_be_added(tmp_path: Path) -> None:
    entries = {"w": TensorEntry(np.dtype("<i2"), (2,), 4)}
    with pytest.raises(ValueError, match="1 declared tensors were not added"):
        SafetensorsWriter(tmp_path / "s.safetensors", entries).commit()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "header",
    [
        {"w": {"dtype": "F32", "shape": [1 << 40], "data_offsets": [0, 4 << 40]}},
        {"w": {"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}},
        {"w": {"dtype": "F32", "shape": [-1], "data_offsets": [0, -4]}},
        {"w": {"dtype": "X", "shape": [1], "data_offsets": [0, 4]}},
        {"w": 3},
        [],
    ],
)
def test_a_header_that_does_not_fit_the_file_is_refused(tmp_path: Path, header: Any) -> None:
    text = json.dumps(header).encode()
    (tmp_path / "s.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + b"\0" * 4)
    with pytest.raises(CorruptCheckpointError, match="not a safetensors file or damaged"):
        open_checkpoint(tmp_path / "s.safetensors")


def test_torch_tensors_are_read_back_as_torch_tensors(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    state = {"w": torch.ones(2, 3, dtype=torch.bfloat16), "n": np.ones(2)}
    torch_state.save(state, tmp_path / "c.h5")
    loaded = torch_state.load(tmp_path / "c.h5")
    assert torch.equal(loaded["w"], state["w"]) and isinstance(loaded["n"], np.ndarray)


def test_the_error_of_missing_torch_says_how_to_install_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch_state.save(STATE, tmp_path / "c.h5")
    monkeypatch.setitem(__import__("sys").modules, "torch", None)
    with pytest.raises(CheckpointError, match="pip install torch"):
        torch_state.to_torch_pickle(tmp_path / "c.h5", tmp_path / "c.pt")


@pytest.mark.parametrize(("num_leaves", "is_indexed"), [(20, False), (300, True)])
def test_the_attributes_of_a_large_state_have_an_index(tmp_path: Path, num_leaves: int, is_indexed: bool) -> None:
    # Without an index HDF5 goes through all attributes to add one.
    state = {f"w{k}": np.full(2, k) for k in range(num_leaves)}
    torch_state.save(state, tmp_path / "s.h5")
    with h5py.File(tmp_path / "s.h5") as file:
        assert (h5py.h5o.get_info(file.id).meta_size.attr.index_size > 0) == is_indexed
        assert len(file.attrs) == num_leaves + 4
        assert json.loads(file.attrs["w7.__metadata__"])
        assert file["w7"][:].tolist() == [7, 7]
    loaded = torch_state.load(tmp_path / "s.h5")
    assert list(loaded) == list(state)
    assert all(loaded[name].tolist() == value.tolist() for name, value in state.items())
