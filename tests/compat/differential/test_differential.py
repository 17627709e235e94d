"""Ours does what TensorFlow 2.15 does: the same scripts, with the outcomes compared.

`golden/` holds the outcomes of 2.15, so the tests run without 2.15. To record them again after changing a scenario:
`CEREBRAS_TF215=/path/to/python pytest tests/compat/differential --regold`; scripts/tf215_venv.sh makes that Python.
"""

from __future__ import annotations

import functools
import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.compat.differential.compare import differences
from tests.compat.differential.known import KNOWN

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
MODULES = sorted(path for path in (HERE / "scenarios").glob("*.py") if path.stem != "common")
PEER = os.environ.get("CEREBRAS_TF215", "")


def record(python: str, module: Path, folder: Path) -> dict[str, Any]:
    """Run all scenarios of a module; return what each did."""
    output = folder / f"{module.stem}.json"
    environ = {name: value for name, value in os.environ.items() if name not in ("TF_CONFIG", "PYTHONPATH")}
    environ["CEREBRAS_HOME"] = str(folder / "home")
    if python != PEER:
        environ["PYTHONPATH"] = str(ROOT)
    words = [python, "-W", "ignore", str(HERE / "runner.py"), str(module), str(output), str(folder / module.stem)]
    done = subprocess.run(words, env=environ, capture_output=True, text=True, timeout=550)
    assert output.exists(), done.stderr[-4000:]
    result: dict[str, Any] = json.loads(output.read_text(encoding="utf-8"))
    return result


def golden(module: Path) -> dict[str, Any]:
    """Return the recorded outcomes of 2.15."""
    path = HERE / "golden" / f"{module.stem}.json"
    result: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return result


HEAVY = ("canned", "heads", "exports", "hooks", "inputs", "scaffolds", "variables")
"""Modules that take minutes."""
CASES = [(module, name) for module in MODULES for name in golden(module)]
PARAMETERS = [
    pytest.param(module, name, id=f"{module.stem}-{name}", marks=[pytest.mark.slow] if module.stem in HEAVY else [])
    for module, name in CASES
]


@pytest.fixture(scope="session")
def ours(tmp_path_factory: pytest.TempPathFactory, warm_python: list[str]) -> Any:
    """Return a function: module -> outcomes of its scenarios on ours. Each module runs in one process."""
    return functools.cache(lambda module: record(warm_python[0], module, tmp_path_factory.mktemp("ours")))


@pytest.mark.parametrize("module, name", PARAMETERS)
def test_ours_does_what_2_15_did(module: Path, name: str, ours: Any, request: pytest.FixtureRequest) -> None:
    reason = KNOWN.get(f"{module.stem}.{name}")
    if reason:
        request.applymarker(pytest.mark.xfail(reason=reason, strict=False))
    lines = list(differences(golden(module)[name], ours(module)[name]))
    assert not lines, "\n".join(lines)


def test_known_differences_name_scenarios() -> None:
    assert set(KNOWN) <= {f"{module.stem}.{name}" for module, name in CASES}


@pytest.mark.slow
@pytest.mark.interop
@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.stem)
def test_golden_is_what_2_15_does(module: Path, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    if not PEER:
        pytest.skip("needs TensorFlow 2.15: set CEREBRAS_TF215 to its Python; scripts/tf215_venv.sh makes one")
    recorded = record(PEER, module, tmp_path)
    if request.config.getoption("--regold", default=False):
        text = json.dumps(recorded, sort_keys=True, indent=0).replace("\n", " ").replace('}, "', '},\n"') + "\n"
        (HERE / "golden" / f"{module.stem}.json").write_text(text, encoding="utf-8")
    lines = list(differences(golden(module), recorded))
    assert not lines, "\n".join(lines)
