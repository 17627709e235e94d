"""Once our package is installed, a script that does not import it finds tf.estimator."""

from __future__ import annotations

import os
import shutil
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


OLD_SCRIPT = """
import inspect
import numpy as np
import tensorflow as tf
lower = np.quantile([1, 2], 0.4, interpolation="lower")
print(tf.estimator.ModeKeys.TRAIN, inspect.getargspec(lambda a: a).args, lower)
"""


def test_a_plain_script_with_estimators_finds_names_that_python_and_numpy_dropped(
    installed: Path, tmp_path: Path
) -> None:
    script = tmp_path / "run.py"
    script.write_text(OLD_SCRIPT, encoding="utf-8")
    environ = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
    environ.pop("PYTHONPATH", None)
    words = [sys.executable, "-W", "ignore", "-c", START, str(installed), str(script)]
    done = subprocess.run(words, env=environ, capture_output=True, text=True)
    assert done.stdout.strip() == "train ['a'] 1", done.stderr[-2000:]


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


BREAKS = {
    "a package that is gone": lambda package: shutil.rmtree(package),
    "a damaged file": lambda package: (package / "compat" / "activate.py").write_text("def"),
    "a missing dependency": lambda package: (package / "terminal.py").write_text("import no_such_dependency"),
    "an error while the names are set up": lambda package: _append(package / "compat/finder.py", "install = None"),
    "an error after the import": lambda package: _append(package / "compat/activate.py", "_set = None"),
}
WARNED = ("cannot set up tf.estimator", "could not add its names")


def _append(path: Path, line: str) -> None:
    path.write_text(f"{path.read_text()}\n{line}\n")


@pytest.mark.parametrize("damage", BREAKS)
def test_with_a_broken_installation_other_programs_run_and_print_one_line(
    installed: Path, tmp_path: Path, damage: str
) -> None:
    site = tmp_path / "site"
    shutil.copytree(installed, site)
    BREAKS[damage](site / "cerebras_tensorflow")
    # A stand-in for TensorFlow, for speed: nothing here depends on what it contains.
    (site / "tensorflow").mkdir()
    (site / "tensorflow" / "__init__.py").write_text("__version__ = '2.21.0'\nvalue = 7\n")
    script = tmp_path / "run.py"
    script.write_text("import tensorflow, json\nprint(tensorflow.value)\n")
    done = started([str(site), str(script)], site)
    assert (done.returncode, done.stdout.strip()) == (0, "7"), done.stderr
    assert len(done.stderr.splitlines()) == 1 and any(text in done.stderr for text in WARNED), done.stderr


def test_a_pth_file_without_its_module_prints_nothing(installed: Path, tmp_path: Path) -> None:
    site = tmp_path / "site"
    site.mkdir()
    shutil.copy(installed / "cerebras_tensorflow_autoload.pth", site)
    script = tmp_path / "run.py"
    script.write_text("print(7)\n")
    done = started([str(site), str(script)], site)
    assert (done.stdout.strip(), done.stderr) == ("7", "")


def started(words: list[str], site: Path) -> subprocess.CompletedProcess[str]:
    """Run a script in a Python whose packages are those of a folder alone, as a user without a home."""
    environ = {**os.environ, "PYTHONPATH": str(site), "HOME": "/nonexistent", "TF_CPP_MIN_LOG_LEVEL": "3"}
    command = [sys.executable, "-S", "-c", START, *words]
    return subprocess.run(command, env=environ, cwd=site.parent, capture_output=True, text=True)


def test_a_launched_python_without_the_package_starts_and_runs_the_hidden_sitecustomize(tmp_path: Path) -> None:
    hidden = tmp_path / "hidden" / "sitecustomize.py"
    hidden.parent.mkdir()
    hidden.write_text("print('hidden')")
    path = os.pathsep.join([str(ROOT / "cerebras_tensorflow/compat/roots/launched"), str(hidden.parent)])
    environ = {**os.environ, "PYTHONPATH": path}
    # -S: without site-packages; site.main() then runs sitecustomize alone.
    code = "import site; site.execsitecustomize(); print('started')"
    command = [sys.executable, "-S", "-c", code]
    done = subprocess.run(command, env=environ, cwd=tmp_path, capture_output=True, text=True)
    assert done.stdout.splitlines() == ["hidden", "started"]
    assert "cerebras_tensorflow" in done.stderr


@pytest.mark.parametrize("is_there", [True, False])
def test_a_missing_script_of_the_model_zoo_names_the_command_to_use(
    installed: Path, tmp_path: Path, is_there: bool
) -> None:
    script = tmp_path / "convert_checkpoint.py"
    if is_there:
        script.write_text("print('theirs')")
    # As the .pth file does, before Python opens the script.
    (tmp_path / "sitecustomize.py").write_text("import cerebras_tensorflow_autoload")
    environ = {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{installed}"}
    done = subprocess.run([sys.executable, str(script)], env=environ, capture_output=True, text=True, timeout=60)
    hint = f"{script}: run the command convert_checkpoint instead; it takes the same arguments\n"
    assert done.stderr.startswith(hint) is not is_there
    assert done.stdout == ("theirs\n" if is_there else "")
