"""Every shipped params file is accepted, and every tiny one names existing data."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest
import yaml

import reference_implementations
from reference_implementations.common import run as run_module

FOLDER = Path(reference_implementations.__file__).parent
CONFIGS = sorted(FOLDER.glob("**/configs/*.yaml"))
SETTINGS_OF = {"gpt3": "gpt2"}


def load(config: Path) -> dict:
    model = ".".join(config.parent.parent.relative_to(FOLDER).parts)
    settings = importlib.import_module(f"reference_implementations.{SETTINGS_OF.get(model, model)}.settings")
    options = run_module._parser().parse_args(["-p", str(config)])
    return run_module.load_params(options, settings.SECTIONS)


@pytest.mark.parametrize("config", CONFIGS, ids=lambda path: f"{path.parent.parent.name}-{path.stem}")
def test_a_shipped_config_is_accepted_and_can_be_written_back(config: Path) -> None:
    params = load(config)
    assert yaml.safe_load(yaml.safe_dump(params)) == params


MODELS = sorted(path.parent for path in FOLDER.glob("**/model.py"))


@pytest.mark.parametrize("folder", MODELS, ids=lambda path: path.name)
def test_every_model_has_a_tiny_config_with_data_and_documentation(folder: Path) -> None:
    params = load(folder / "configs" / "params_tiny.yaml")
    for section in ("train_input", "eval_input"):
        assert Path(params[section]["data_file"]).is_file()
    assert "params_tiny.yaml" in (folder / "README.md").read_text()
