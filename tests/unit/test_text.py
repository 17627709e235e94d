"""Suggestions for mistyped words and file names."""

from __future__ import annotations

from pathlib import Path

import pytest

from cerebras_tensorflow.text import did_you_mean_file, near


@pytest.mark.parametrize(("word", "meant"), [("ft", "tf"), ("gtpj", "gptj"), ("fh", "hf"), ("q", ""), ("xyz", "")])
def test_swapped_letters_are_near_in_short_words_too(word: str, meant: str) -> None:
    assert near(word, ["hf", "tf", "gptj"]) == meant


def test_the_near_name_of_a_missing_file_includes_its_folder(tmp_path: Path) -> None:
    (tmp_path / "params_tiny.yaml").touch()
    place = str(tmp_path / "params_tiny.yaml")
    assert did_you_mean_file(tmp_path / "params_tyni.yaml") == f"; did you mean {place!r}?"
    assert did_you_mean_file(tmp_path / "params_tyni.yaml", "*.py") == ""
    assert did_you_mean_file(tmp_path / "other" / "params_tiny.yaml") == ""


def test_a_mistyped_folder_is_named_if_the_file_is_in_the_near_one(tmp_path: Path) -> None:
    (tmp_path / "gptj").mkdir()
    (tmp_path / "gptj" / "run.py").touch()
    place = str(tmp_path / "gptj" / "run.py")
    assert did_you_mean_file(tmp_path / "gtpj" / "run.py", "*.py") == f"; did you mean {place!r}?"
    assert did_you_mean_file(tmp_path / "gtpj" / "train.py", "*.py") == ""
    assert did_you_mean_file("") == ""
