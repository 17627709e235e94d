"""Reading a params file: errors name the file and the line."""

from __future__ import annotations

from pathlib import Path

import pytest

from cerebras_tensorflow.config.params_file import read_params
from cerebras_tensorflow.errors import SettingsError


@pytest.mark.parametrize(
    ("text", "message"),
    [("- 1\n", "expected sections"), ("b: 1\na: [", "line 2, column 5: not valid YAML"), ("", "expected sections")],
)
def test_a_file_that_holds_no_sections_is_refused(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "params.yaml"
    path.write_text(text)
    with pytest.raises(SettingsError, match=message):
        read_params(path)


def test_a_missing_file_is_named_with_a_near_name(tmp_path: Path) -> None:
    (tmp_path / "params.yaml").touch()
    with pytest.raises(SettingsError, match=r"parmas\.yaml.*No such file.*did you mean .*params.yaml"):
        read_params(tmp_path / "parmas.yaml")


def test_a_file_that_is_not_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "params.yaml"
    path.write_bytes(b"a: \xff")
    with pytest.raises(SettingsError, match="byte 3 is not UTF-8"):
        read_params(path)
