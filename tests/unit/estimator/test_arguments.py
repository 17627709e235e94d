"""Checks of what a user gives to an Estimator."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from cerebras_tensorflow.errors import SettingsError
from cerebras_tensorflow.estimator.arguments import make_model_dir


def hostile(path: Path, kind: str) -> None:
    path.parent.mkdir(parents=True)
    if kind == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to("/" if kind == "link" else "/no/such/file")


@pytest.mark.parametrize("kind", ["link", "dangling link", "pipe"])
@pytest.mark.parametrize("name", ["export/best/1700000000", "plugins/profile/a", "eval/events.out.tfevents.9.vm"])
def test_nothing_below_the_folders_of_a_run_leads_out_or_blocks(name: str, kind: str, tmp_path: Path) -> None:
    hostile(tmp_path / name, kind)
    with pytest.raises(SettingsError, match=f"{name} is (a link to /|neither a file nor a folder)"):
        make_model_dir(str(tmp_path))


def test_links_of_folders_to_each_other_are_followed_once(tmp_path: Path) -> None:
    (tmp_path / "train").mkdir()
    (tmp_path / "train" / "again").symlink_to("../train")
    (tmp_path / "inside").mkdir()
    (tmp_path / "eval").symlink_to("inside")
    make_model_dir(str(tmp_path))
    (tmp_path / "inside" / "out").symlink_to("/")
    with pytest.raises(SettingsError, match="out is a link to /"):
        make_model_dir(str(tmp_path))


@pytest.mark.parametrize("name", ["train", "eval_test", "performance", "report", "export", "events.out.tfevents.9.vm"])
def test_a_run_writes_only_inside_its_model_dir(name: str, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "real").mkdir()
    (tmp_path / "model_dir").symlink_to("real")  # the model_dir itself may be a link
    (tmp_path / "real" / "inside").mkdir()
    (tmp_path / "real" / name).symlink_to("inside")
    make_model_dir(str(tmp_path / "model_dir"))
    (tmp_path / "real" / name).unlink()
    (tmp_path / "real" / name).symlink_to("../mine")
    with pytest.raises(SettingsError, match=f"{name} is a link to .*mine, and a run writes only inside its model_dir"):
        make_model_dir(str(tmp_path / "model_dir"))


def test_a_path_that_is_not_utf8_is_refused(tmp_path: Path) -> None:
    folder = os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9")
    with pytest.raises(SettingsError, match=r"caf\\xe9 is not UTF-8, which TensorFlow needs"):
        make_model_dir(folder)
    assert not os.path.exists(folder)
