"""Once our package is installed, a script that does not import it finds tf.estimator."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import cerebras_tensorflow
from cerebras_tensorflow.compat import activate

ROOT = Path(cerebras_tensorflow.__file__).parents[1]
START = "import site, sys; site.addsitedir(sys.argv[1]); import runpy; sys.argv = sys.argv[2:]; "
START += "runpy.run_path(sys.argv[0], run_name='__main__')"
SCRIPT = """
import sys
assert "cerebras_tensorflow" not in sys.modules
import tensorflow.compat.v1 as tf
print(hasattr(tf, "estimator"), "cerebras_tensorflow" in sys.modules)
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the files that the wheel installs."""
    pytest.importorskip("setuptools")
    folder = tmp_path_factory.mktemp("installed")
    command = [sys.executable, "-W", "ignore", "setup.py", "-q", "build_py", "--build-lib", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, timeout=120)
    return folder


@pytest.mark.parametrize("switch, printed", [("1", "True True"), ("0", "False False")])
def test_a_plain_tensorflow_script_finds_tf_estimator(
    installed: Path, tmp_path: Path, switch: str, printed: str
) -> None:
    script = tmp_path / "run.py"
    script.write_text(SCRIPT, encoding="utf-8")
    environ = {**os.environ, "CEREBRAS_TENSORFLOW_AUTOLOAD": switch, "TF_CPP_MIN_LOG_LEVEL": "3"}
    environ.pop("PYTHONPATH", None)
    words = [sys.executable, "-W", "ignore", "-c", START, str(installed), str(script)]
    done = subprocess.run(words, env=environ, capture_output=True, text=True)
    assert done.stdout.strip() == printed, done.stderr[-2000:]


def test_a_script_that_imports_us_first_gets_tensorflow_with_its_estimator(installed: Path, tmp_path: Path) -> None:
    script = tmp_path / "run.py"
    script.write_text("import cerebras_tensorflow\nimport tensorflow as tf\nprint(tf.estimator.RunConfig)\n")
    environ = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
    environ.pop("PYTHONPATH", None)
    words = [sys.executable, "-W", "ignore", "-c", START, str(installed), str(script)]
    done = subprocess.run(words, env=environ, capture_output=True, text=True)
    assert "run_config.RunConfig" in done.stdout, done.stderr[-2000:]


def test_nothing_of_ours_is_imported_before_tensorflow(installed: Path) -> None:
    code = "import site, sys; site.addsitedir(sys.argv[1]); "
    code += "print(sorted(name for name in sys.modules if name.startswith('cerebras')))"
    done = subprocess.run([sys.executable, "-c", code, str(installed)], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "['cerebras_tensorflow_autoload']"


@pytest.mark.parametrize(
    "text, is_old",
    [
        ("tf.estimator.Estimator(model_fn)", True),
        ("tf.compat.v1.estimator.RunConfig()", True),
        ("from tensorflow_estimator.python.estimator import run_config", True),
        ("from tensorflow import estimator", True),
        ("from tensorflow.python.estimator import util", True),
        ("import keras; keras.Model()", False),
        ("import tensorflow as tf; tf.keras.Model()", False),
    ],
)
def test_scripts_that_use_estimators_get_keras_2(tmp_path: Path, text: str, is_old: bool) -> None:
    (tmp_path / "run.py").write_text("import model", encoding="utf-8")
    (tmp_path / "model.py").write_text(text, encoding="utf-8")
    assert activate._uses_estimators(tmp_path / "run.py") is is_old


def test_a_module_that_the_script_does_not_name_leaves_it_keras_3(tmp_path: Path) -> None:
    (tmp_path / "run.py").write_text("import tensorflow as tf", encoding="utf-8")
    (tmp_path / "old.py").write_text("tf.estimator.Estimator(model_fn)", encoding="utf-8")
    assert not activate._uses_estimators(tmp_path / "run.py")
