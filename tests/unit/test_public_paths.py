"""The paths that users import, and the commands that an installation gives them. Files may move; these stay."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

if sys.version_info >= (3, 11):
    import tomllib
else:
    tomllib = pytest.importorskip("tomli")

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
COMMANDS = [
    *("cs", "cs-checkpoint", "cs-plan", "cs-system", "cs_input_analyzer", "csctl", "csrun_cpu", "csrun_wse"),
    *("convert_checkpoint", "h5-to-tensorflow", "python-ws", "tensorflow-to-h5"),
]
NAMES = {
    "cerebras_tensorflow": [
        *("CSConfig", "CSEstimatorSpec", "CSRunConfig", "CerebrasEstimator", "EstimatorSpec", "ModeKeys", "RunConfig"),
        *("WarmStartSettings", "__version__"),
    ],
    "cerebras_tensorflow.saver.tf_h5_saver": ["load", "save", "update"],
    "cerebras_tensorflow.saver.checkpoint_reader": ["CheckpointReader", "open_checkpoint"],
    "cerebras_tensorflow.saver.torch_state": ["load", "save"],
    "cerebras_tensorflow.errors": ["CerebrasError", "CheckpointError", "SettingsError"],
    "cerebras_tensorflow.cs_estimator_app": ["CerebrasAppEstimator"],
    "cerebras_tensorflow.cs_estimator_spec": ["CSEstimatorSpec"],
    "cerebras_appliance.run_utils": ["get_debug_args", "write_debug_args"],
}


@pytest.mark.parametrize(("module", "name"), [(module, name) for module, names in NAMES.items() for name in names])
def test_users_import_the_name_from_the_path(module: str, name: str) -> None:
    assert getattr(importlib.import_module(module), name) is not None


def test_the_installation_has_all_commands() -> None:
    assert sorted(PROJECT["scripts"]) == sorted(COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_the_command_has_its_function(command: str) -> None:
    module, _, function = PROJECT["scripts"][command].partition(":")
    assert callable(getattr(importlib.import_module(module), function))
