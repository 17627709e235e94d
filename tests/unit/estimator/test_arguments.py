"""Checks of what a user gives to an Estimator."""

from __future__ import annotations

from pathlib import Path

import pytest

from cerebras_tensorflow.errors import SettingsError
from cerebras_tensorflow.estimator.arguments import make_model_dir


@pytest.mark.parametrize("name", ["train", "eval_test", "performance", "report"])
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
