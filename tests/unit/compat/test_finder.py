"""Every row of the table resolves to its object, in a process with exactly the roots of that row on its path."""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import cerebras_tensorflow
from cerebras_tensorflow.compat import finder, names, names_md
from cerebras_tensorflow.compat.names import ABSENT, CBCORE, TABLE, WHEEL, WS

ROOT = Path(cerebras_tensorflow.__file__).parents[1]
ROOTS = ROOT / "cerebras_tensorflow" / "compat" / "roots"
CHECK = """
import importlib, json, operator, sys
import cerebras_tensorflow
rows = json.load(sys.stdin)
for module, name, home in rows:
    try:
        loaded = importlib.import_module(module)
    except ImportError:
        print(json.dumps([module, name, "no module"]))
        continue
    value = getattr(loaded, name, None) if name else loaded
    if value is None:
        print(json.dumps([module, name, "no name"]))
    elif home:
        where, _, attribute = home.partition(":")
        same = operator.attrgetter(attribute)(importlib.import_module(where)) is value
        print(json.dumps([module, name, "same" if same else "another"]))
    else:
        print(json.dumps([module, name, "same"]))
"""


def visible(roots: list[str], rows: list[names.Name]) -> dict[tuple[str, str], str]:
    """Which of some rows a new process can import, with the given roots on its path."""
    path = os.pathsep.join([*(str(ROOTS / root) for root in roots), str(ROOT)])
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", CHECK],
        input=json.dumps([[row.module, row.name, row.home] for row in rows]),
        env={**os.environ, "PYTHONPATH": path, "TF_CPP_MIN_LOG_LEVEL": "3"},
        capture_output=True,
        text=True,
        check=True,
    )
    results = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("[")]
    return {(module, name): result for module, name, result in results}


@pytest.fixture(scope="module")
def in_launch() -> dict[tuple[str, str], str]:
    return visible(["launched", "wheel", "cbcore", "ws"], list(TABLE))


@pytest.mark.parametrize("row", TABLE, ids=lambda row: f"{row.module}.{row.name}")
def test_a_launched_script_finds_the_names_of_the_table(row: names.Name, in_launch: dict[tuple[str, str], str]) -> None:
    results = in_launch[row.module, row.name]
    assert results in ("no name", "no module") if row.status == ABSENT else results == "same"


def test_a_plain_process_finds_the_wheel_but_not_the_container() -> None:
    rows = [row for row in TABLE if row.root in (WHEEL, CBCORE, WS) and row.status != ABSENT]
    results = visible(["wheel"], rows)
    for row in rows:
        assert results[row.module, row.name] == ("same" if row.root == WHEEL else "no module"), row


def test_tfwse_is_importable_only_with_the_ws_root() -> None:
    rows = [row for row in TABLE if row.root == WS]
    assert visible(["wheel", "cbcore"], rows)["tfwse", ""] == "no module"
    assert visible(["wheel", "cbcore", "ws"], rows)["tfwse", ""] == "same"


def test_importing_the_package_loads_no_tensorflow() -> None:
    code = "import sys, cerebras_tensorflow, cerebras_appliance.CSConfig; sys.exit('tensorflow' in sys.modules)"
    path = os.pathsep.join([str(ROOTS / "wheel"), str(ROOT)])
    assert subprocess.run([sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": path}).returncode == 0


def test_tensorflow_is_imported_without_garbage_collection(tmp_path: Path) -> None:
    (tmp_path / "tensorflow.py").write_text("import gc\ncollects = gc.isenabled()\n")
    code = "import cerebras_tensorflow, tensorflow, gc; print(tensorflow.collects, gc.isenabled())"
    path = os.pathsep.join([str(tmp_path), str(ROOT)])
    command = [sys.executable, "-c", code]
    done = subprocess.run(
        command, env={**os.environ, "PYTHONPATH": path}, stdout=subprocess.PIPE, text=True, check=True
    )
    assert done.stdout == "False True\n"


def test_every_row_has_a_known_root_and_status() -> None:
    for row in TABLE:
        assert row.root in names.ROOTS
        assert row.status in (names.FULL, names.NOTED, ABSENT)
        assert bool(row.home) or row.status == ABSENT or not row.name


def test_names_md_matches_the_table() -> None:
    path = ROOT / "cerebras_tensorflow" / "compat" / "NAMES.md"
    assert path.read_text(encoding="utf-8") == names_md.text(), "run python -m cerebras_tensorflow.compat.names_md"


def test_absent_names_of_the_estimator_say_why() -> None:
    import tensorflow as tf

    with pytest.raises(AttributeError, match="tensorflow_decision_forests"):
        tf.estimator.BoostedTreesClassifier  # noqa: B018


def test_a_module_stays_watched_until_it_has_been_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "fails_once.py").write_text(
        "import os\nif os.environ.pop('FAIL_ONCE', None):\n    raise OSError('once')\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("FAIL_ONCE", "1")
    watcher, seen = finder.Finder(), []
    monkeypatch.setattr(sys, "meta_path", [watcher, *sys.meta_path])
    watcher.watch("fails_once", lambda module: seen.append(module.__name__))
    assert importlib.util.find_spec("fails_once") is not None
    with pytest.raises(OSError, match="once"):
        importlib.import_module("fails_once")
    assert seen == []
    importlib.import_module("fails_once")
    assert seen == ["fails_once"]
    assert not watcher._waiting
