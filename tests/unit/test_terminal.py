"""What a user sees when TensorFlow starts and when an error ends a script."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
START = """
import cerebras_tensorflow
import os
import tensorflow as tf
with tf.Graph().as_default(), tf.compat.v1.Session() as session:
    session.run(tf.constant(1.0) + 2)
os.write(2, b"E0000 a real error of TensorFlow\\n")
"""


def run(script: str, tmp_path: Path, **settings: str) -> subprocess.CompletedProcess[str]:
    path = tmp_path / "script.py"
    path.write_text(script)
    unset = ("TF_CPP_MIN_LOG_LEVEL", "CEREBRAS_DEBUG", "CSRUN_INPUT_FOLDER")
    environ = {name: value for name, value in os.environ.items() if name not in unset}
    command = [sys.executable, "-W", "ignore", str(path)]
    environ |= {"PYTHONPATH": str(ROOT), **settings}
    return subprocess.run(command, env=environ, capture_output=True, text=True, timeout=120)


def test_tensorflow_starts_without_a_line_and_its_errors_show(tmp_path: Path) -> None:
    done = run(START + "print(os.environ.get('TF_CPP_MIN_LOG_LEVEL'))", tmp_path)
    assert done.stderr == "E0000 a real error of TensorFlow\n"
    assert done.stdout == "None\n"  # processes that the script starts choose their level themselves


def test_the_users_log_level_wins(tmp_path: Path) -> None:
    assert "MLIR V1 optimization pass" in run(START, tmp_path, TF_CPP_MIN_LOG_LEVEL="0").stderr  # level I
    assert run(START, tmp_path, TF_CPP_MIN_LOG_LEVEL="2").stderr == "E0000 a real error of TensorFlow\n"


def test_errors_before_an_abort_during_the_import_are_shown(tmp_path: Path) -> None:
    folder = tmp_path / "site" / "tensorflow"
    folder.mkdir(parents=True)
    lines = r"oneDNN custom operations are on\nF0000 this processor is too old\n"
    (folder / "__init__.py").write_text(f"import os; os.write(2, b'{lines}'); os.abort()")
    done = run("import cerebras_tensorflow, tensorflow", tmp_path, PYTHONPATH=f"{folder.parent}:{ROOT}")
    assert done.returncode < 0
    assert done.stderr.startswith("F0000 this processor is too old\n")
    assert "oneDNN" not in done.stderr


RAISE = """
import cerebras_tensorflow
from cerebras_tensorflow.errors import CompileError
def deep(): raise CompileError("node 'x' cannot be compiled")
deep()
"""


def test_an_uncaught_error_of_ours_is_its_text_and_the_scripts_line(tmp_path: Path) -> None:
    done = run(RAISE, tmp_path)
    text = "cerebras_tensorflow.errors.CompileError: node 'x' cannot be compiled\n"
    assert done.stderr == f"{text}(script.py, line 4; CEREBRAS_DEBUG=1 shows the traceback)\n"
    assert done.returncode == 1


def test_the_traceback_is_kept_in_the_launchs_folder(tmp_path: Path) -> None:
    done = run(RAISE, tmp_path, CSRUN_INPUT_FOLDER=str(tmp_path))
    assert "Traceback" not in done.stderr
    assert str(tmp_path / "traceback.log") in done.stderr
    assert "in deep" in (tmp_path / "traceback.log").read_text()


def test_debug_and_errors_of_others_show_a_traceback(tmp_path: Path) -> None:
    assert "Traceback" in run(RAISE, tmp_path, CEREBRAS_DEBUG="1").stderr
    assert "Traceback" in run("import cerebras_tensorflow; 1 / 0", tmp_path).stderr
