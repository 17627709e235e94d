"""checkpoint_state, retention, checkpoint_reader: the checkpoints of a model_dir."""

import json
import os
from pathlib import Path

import h5py
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cerebras_tensorflow.errors import CheckpointError, CorruptCheckpointError
from cerebras_tensorflow.saver import tf_h5_saver
from cerebras_tensorflow.saver.bundle.writer import BundleWriter
from cerebras_tensorflow.saver.checkpoint_reader import (
    CheckpointReader,
    checkpoints_newest_first,
    is_complete,
    open_checkpoint,
)
from cerebras_tensorflow.saver.checkpoint_writer import open_writer
from cerebras_tensorflow.saver.model_dir.retention import Policy, advance, clean_up, record_save, remove
from cerebras_tensorflow.saver.model_dir.state import CheckpointState, read_state, write_state

HOUR_S = 3600.0


def save(folder: Path, name: str, value: int = 0) -> str:
    with BundleWriter(folder / name) as writer:
        writer.add("x", value)
    return str(folder / name)


def test_the_state_is_written_as_tensorflow_writes_it(tmp_path: Path) -> None:
    inside, outside = str(tmp_path / "model.ckpt-5"), "/else/model.ckpt-0"
    write_state(tmp_path, CheckpointState(inside, (outside, inside), (1.5, 2.0), 1.5))
    assert (tmp_path / "checkpoint").read_text() == (
        'model_checkpoint_path: "model.ckpt-5"\n'
        'all_model_checkpoint_paths: "/else/model.ckpt-0"\n'
        'all_model_checkpoint_paths: "model.ckpt-5"\n'
        "all_model_checkpoint_timestamps: 1.5\n"
        "all_model_checkpoint_timestamps: 2.0\n"
        "last_preserved_timestamp: 1.5\n"
    )
    assert read_state(tmp_path) == CheckpointState(inside, (inside,), (2.0,), 1.5)


@settings(deadline=None)  # it writes files
@given(st.text(min_size=1).filter(lambda name: "\0" not in name and "/" not in name and name not in (".", "..")))
def test_any_name_survives_the_state_file(tmp_path_factory: pytest.TempPathFactory, name: str) -> None:
    folder = tmp_path_factory.mktemp("state")
    try:
        os.fsencode(name)
    except UnicodeEncodeError:
        return
    write_state(folder, CheckpointState(str(folder / name)))
    state = read_state(folder)
    assert state is not None and state.model_checkpoint_path == str(folder / name)


def test_other_spellings_of_the_text_proto_are_read(tmp_path: Path) -> None:
    (tmp_path / "checkpoint").write_text("model_checkpoint_path : 'a\\x41\\102\\n'  later_field: 3")
    state = read_state(tmp_path)
    assert state is not None and state.model_checkpoint_path == str(tmp_path / "aAB\n")


@pytest.mark.parametrize("text", ["garbage", 'model_checkpoint_path: "open', "all_model_checkpoint_timestamps: soon"])
def test_a_damaged_state_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "checkpoint").write_text(text)
    with pytest.raises(CorruptCheckpointError, match="checkpoint"):
        read_state(tmp_path)


def test_keep_max_keeps_the_newest_checkpoints(tmp_path: Path) -> None:
    for step in range(5):
        record_save(str(tmp_path), save(tmp_path, f"model.ckpt-{step}"), Policy(keep_max=2), float(step))
    assert checkpoints_newest_first(tmp_path) == [str(tmp_path / "model.ckpt-4"), str(tmp_path / "model.ckpt-3")]
    assert len(os.listdir(tmp_path)) == 5


@pytest.mark.parametrize("keep_max", [0, None])
def test_zero_or_none_keeps_all(tmp_path: Path, keep_max: int | None) -> None:
    for step in range(7):
        record_save(str(tmp_path), save(tmp_path, f"model.ckpt-{step}"), Policy(keep_max))
    assert len(checkpoints_newest_first(tmp_path)) == 7


def test_keep_every_n_hours_keeps_one_per_period() -> None:
    policy = Policy(keep_max=1, keep_every_n_hours=2)
    state: CheckpointState | None = None
    kept = []
    for hour in range(8):
        state, gone = advance(state, f"c-{hour}", hour * HOUR_S, policy)
        kept.append(gone)
    # As tf.compat.v1.train.Saver: after more than 2, 4, 6 hours.
    assert kept == [[], ["c-0"], ["c-1"], ["c-2"], [], ["c-4"], [], ["c-6"]]
    assert state is not None and state.all_model_checkpoint_paths == ("c-7",)


def test_saving_a_step_again_records_it_once(tmp_path: Path) -> None:
    for _ in range(2):
        record_save(str(tmp_path), save(tmp_path, "model.ckpt-3"), Policy(keep_max=1))
    state = read_state(tmp_path)
    assert state is not None and state.all_model_checkpoint_paths == (str(tmp_path / "model.ckpt-3"),)


def test_a_state_that_lists_a_checkpoint_twice_costs_none_that_it_keeps(tmp_path: Path) -> None:
    old, new = save(tmp_path, "model.ckpt-1"), save(tmp_path, "model.ckpt-2")
    listed = (new, old, f"{tmp_path}/./model.ckpt-1", new)
    write_state(tmp_path, CheckpointState(new, listed))
    assert record_save(str(tmp_path), save(tmp_path, "model.ckpt-3"), Policy(keep_max=2)) == [old]
    state = read_state(tmp_path)
    assert state is not None and state.all_model_checkpoint_paths == (new, str(tmp_path / "model.ckpt-3"))
    assert is_complete(new)


def test_a_damaged_state_is_replaced_at_the_next_save(tmp_path: Path) -> None:
    (tmp_path / "checkpoint").write_text("garbage")
    record_save(str(tmp_path), save(tmp_path, "model.ckpt-3"), Policy())
    assert checkpoints_newest_first(tmp_path) == [str(tmp_path / "model.ckpt-3")]


def test_unlisted_checkpoints_come_after_listed_ones_by_step(tmp_path: Path) -> None:
    for name in ("model.ckpt-9", "model-ckpt-10", "model.ckpt-2", "other-77"):
        save(tmp_path, name)
    record_save(str(tmp_path), str(tmp_path / "model.ckpt-2"), Policy())
    names = [os.path.basename(path) for path in checkpoints_newest_first(tmp_path)]
    assert names == ["model.ckpt-2", "model-ckpt-10", "model.ckpt-9"]


def test_a_folder_opens_its_newest_checkpoint(tmp_path: Path) -> None:
    record_save(str(tmp_path), save(tmp_path, "model.ckpt-9", 4), Policy())
    for path in (tmp_path, tmp_path / "model.ckpt-9", tmp_path / "model.ckpt-9.index"):
        with open_checkpoint(path) as reader:
            assert reader.read("x") == 4


def test_a_folder_without_state_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="without a `checkpoint` state file"):
        open_checkpoint(tmp_path)


def test_complete_means_every_file_is_long_enough(tmp_path: Path) -> None:
    path = save(tmp_path, "model.ckpt-1")
    assert is_complete(path)
    os.truncate(path + ".data-00000-of-00001", 3)
    assert not is_complete(path)
    remove(path)
    assert not is_complete(path)
    assert os.listdir(tmp_path) == []


def test_clean_up_removes_only_files_that_no_checkpoint_needs(tmp_path: Path) -> None:
    for step in range(2):
        record_save(str(tmp_path), save(tmp_path, f"model.ckpt-{step}"), Policy())
    tf_h5_saver.save(tmp_path / "model-ckpt-3.h5", {"a": 1, "b": 2}, 8)
    kept = sorted(os.listdir(tmp_path))
    for orphan in (
        "model.ckpt-1.data-00000-of-00002",
        "model.ckpt-9.data-00000-of-00001",
        "model-ckpt-3-00000-of-00009.h5",
        "model-ckpt-4-00000-of-00001.h5",
        ".model.ckpt-5.index.partial",
    ):
        (tmp_path / orphan).write_bytes(b"left by a crash")
    for other in ("mine.data-00000-of-00001", "mine-00000-of-00001.h5", "notes"):
        (tmp_path / other).write_bytes(b"not ours")
        kept.append(other)
    assert len(clean_up(str(tmp_path))) == 5
    assert sorted(os.listdir(tmp_path)) == sorted(kept)


def test_a_writer_is_chosen_by_name(tmp_path: Path) -> None:
    for name, files in (("c", ["c.data-00000-of-00001", "c.index"]), ("d.h5", ["d.h5"])):
        with open_writer(tmp_path / "new" / name) as writer:
            writer.add("x", 4)
        assert sorted(path.name for path in (tmp_path / "new").glob(f"{name}*")) == files
        assert CheckpointReader(tmp_path / "new" / name).get_tensor("x") == 4
    with pytest.raises(ValueError, match=r"no compression; give a name ending in \.h5"):
        open_writer(tmp_path / "c", compression="gzip")


def test_all_checkpoints_lists_complete_ones_oldest_first(tmp_path: Path) -> None:
    assert not CheckpointReader.all_checkpoints(tmp_path)
    for step in (1, 20, 3):
        save(tmp_path, f"model.ckpt-{step}")
    tf_h5_saver.save(tmp_path / "model-ckpt-5.h5", {"x": 1})
    os.truncate(tmp_path / "model.ckpt-3.index", 40)
    names = [os.path.basename(path) for path in CheckpointReader.all_checkpoints(tmp_path)]
    assert names == ["model.ckpt-1", "model-ckpt-5.h5", "model.ckpt-20"]
    assert CheckpointReader.is_a_checkpoint(tmp_path / "model-ckpt-5.h5")
    assert not CheckpointReader.is_a_checkpoint(tmp_path)
    assert not CheckpointReader.is_a_checkpoint(tmp_path / "model.ckpt-3")


def test_ckpt_info_of_releases_1_9_to_2_4_lists_checkpoints_in_its_folder(tmp_path: Path) -> None:
    folder = tmp_path / "model_dir"
    folder.mkdir()
    for path in (folder / "first.mdl", folder / "second.mdl", tmp_path / "outside.h5"):
        tf_h5_saver.save(path, {"global_step": 1})
    listed = [None, "first.mdl", "gone.mdl", "../outside.h5", "second.mdl"]
    with h5py.File(folder / "ckpt_info", "w") as file:
        file.attrs["ckpt_info"] = json.dumps({"nbytes": 1048576, "compression": "lz4", "ckpt_paths": listed})
    assert CheckpointReader.all_checkpoints(folder) == [str(folder / "first.mdl"), str(folder / "second.mdl")]
    (folder / "ckpt_info").write_bytes(b"damaged")
    assert CheckpointReader.all_checkpoints(folder) == []
