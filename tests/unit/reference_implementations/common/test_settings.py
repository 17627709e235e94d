"""Reading and checking params.yaml."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pytest

from cerebras_tensorflow.config.params_file import read_params
from cerebras_tensorflow.errors import SettingsError
from reference_implementations.common.settings import check_section, check_sections, write_yaml


@dataclass(frozen=True)
class Example:
    size: int
    rate: float = 0.5
    kind: Literal["a", "b"] = "a"
    method: Literal["sgd", "adam", "adafactor"] | None = None
    names: tuple[str, ...] = ()
    flag: bool = False
    limit: int | None = None


def test_values_become_the_types_of_the_section() -> None:
    section = check_section({"size": 3, "rate": "1e-4", "names": ["x", "y"], "limit": None}, Example, "model", "p.yaml")
    assert section == Example(size=3, rate=1e-4, names=("x", "y"))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"size": 3, "rat": 1.0}, r"p\.yaml: unknown model key 'rat'; did you mean 'rate'\?"),
        ({"size": 3, "zzz": 1}, r"unknown model key 'zzz'; known: flag, kind, limit, method, names, rate, size"),
        ({"size": "3"}, r"model key 'size' is '3'; expected a whole number"),
        ({"size": True}, r"'size' is True; expected a whole number"),
        ({"size": 3, "rate": "fast"}, r"'rate' is 'fast'; expected a number"),
        ({"size": 3, "kind": "c"}, r"'kind' is 'c'; expected one of 'a', 'b'$"),
        ({"size": 3, "method": "adamx"}, r"'method' is 'adamx'; expected one of .* or nothing; did you mean 'adam'\?$"),
        ({"size": 3, "names": "x"}, r"'names' is 'x'; expected a list of texts"),
        ({"size": 3, "limit": 1.5}, r"'limit' is 1\.5; expected a whole number or nothing"),
        ({"rate": 1.0}, r"section 'model' lacks the required key 'size'"),
        ([1], r"section 'model' must hold keys and values"),
    ],
)
def test_a_wrong_section_is_refused_with_its_values(content: object, message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        check_section(content, Example, "model", "p.yaml")


def test_an_unknown_section_is_refused_with_the_nearest() -> None:
    with pytest.raises(SettingsError, match=r"unknown section 'modle'; did you mean 'model'\?"):
        check_sections({"modle": {"size": 1}}, {"model": Example}, "p.yaml")


def test_written_yaml_reads_back_and_leaves_no_other_file(tmp_path: Path) -> None:
    path = tmp_path / "train" / "params.yaml"
    write_yaml({"model": {"size": 1}}, path)
    write_yaml({"model": {"size": 2}}, path)
    assert read_params(path) == {"model": {"size": 2}}
    assert [item.name for item in path.parent.iterdir()] == ["params.yaml"]
