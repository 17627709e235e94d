"""Public packages that build on tf.estimator run unmodified; docs/programs-tried.md has the list."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

import cerebras_tensorflow

ROOT = Path(cerebras_tensorflow.__file__).parents[1]
PROGRAMS = Path(__file__).parent / "programs"
START = """
import sys, runpy
sys.path[:0] = sys.argv[1].split(":")
import cerebras_tensorflow_autoload
sys.argv = sys.argv[2:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@pytest.mark.slow
@pytest.mark.interop
@pytest.mark.parametrize(
    "package, script, printed",
    [
        ("deepctr==0.9.4", "deepctr_deepfm.py", ("METRICS ['AUC',", "ROW ['logits', 'pred']", "EXPORT")),
        ("tensorflow-ranking==0.5.5", "ranking_dnn.py", ("METRICS ['global_step',", "ROW 4")),
    ],
    ids=["deepctr", "tensorflow-ranking"],
)
def test_a_public_package_runs_unmodified(tmp_path: Path, package: str, script: str, printed: tuple[str, ...]) -> None:
    """The script runs under plain python; only the start-up hook loads our package."""
    folder = tmp_path / "packages"
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(folder), package]
    if subprocess.run(pip, capture_output=True).returncode != 0:
        pytest.skip(f"{package} cannot be installed here")
    hook = ROOT / "cerebras_tensorflow" / "compat" / "roots" / "autoload"
    path = ":".join(map(str, (folder, hook, ROOT, sysconfig.get_paths()["purelib"])))
    environ = {name: value for name, value in os.environ.items() if name not in ("TF_USE_LEGACY_KERAS", "PYTHONPATH")}
    environ.update(CEREBRAS_HOME=str(tmp_path / "home"), TF_CPP_MIN_LOG_LEVEL="3")
    words = [sys.executable, "-W", "ignore", "-c", START, path, str(PROGRAMS / script), str(tmp_path / "model")]
    done = subprocess.run(words, env=environ, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr[-4000:]
    for text in printed:
        assert text in done.stdout
