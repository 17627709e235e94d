"""Reading a params file: errors name the file and the line."""

from __future__ import annotations

from pathlib import Path

import pytest

from cerebras_tensorflow.config.params_file import read_params
from cerebras_tensorflow.errors import SettingsError


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("- 1\n", "expected sections"),
        ("", "expected sections"),
        ("b: 1\na: [", "not valid YAML: line 2, column 5"),
        ("a: 2001-99-99", "not valid YAML: month must be in 1..12"),
        ("a: !!int x", "not valid YAML"),
        ("a: !!timestamp x", "not valid YAML"),
        ("a: " + "9" * 5000, "not valid YAML"),
        ("".join(f"{' ' * depth}a:\n" for depth in range(2000)), "not valid YAML: it is nested too deep"),
        ("a: " + "[" * 300, "brackets are nested deeper"),
        (
            "a: &a [1,1,1,1,1,1,1,1]\n"
            + "".join(
                f"{new}: &{new} [{', '.join([f'*{old}'] * 8)}]\n" for old, new in zip("abcdefg", "bcdefgh", strict=True)
            ),
            "with all references expanded",
        ),
        ("a: &a [*a]", "with all references expanded"),
        (
            "x0: &x0 {a: 1}\n"
            + "".join(f"x{n}: &x{n} {{<<: [{', '.join([f'*x{n - 1}'] * 8)}]}}\n" for n in range(1, 20)),
            "with all merges expanded",
        ),
    ],
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


def test_a_file_without_an_end_is_refused() -> None:
    with pytest.raises(SettingsError, match=r"/dev/zero: too long for a params file: more than 67\.1 MB"):
        read_params("/dev/zero")


def test_merge_keys_take_the_values_of_other_mappings(tmp_path: Path) -> None:
    path = tmp_path / "params.yaml"
    path.write_text("base: &base {a: 1, b: 2}\nother: &other {b: 3, c: 4}\nown: {<<: [*base, *other], a: 5}")
    assert read_params(path)["own"] == {"a": 5, "b": 2, "c": 4}


def test_a_file_that_is_not_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "params.yaml"
    path.write_bytes(b"a: \xff")
    with pytest.raises(SettingsError, match="byte 3 is not UTF-8"):
        read_params(path)
