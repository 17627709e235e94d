"""Names that SciPy and NLTK dropped. Runs in a new process, because the changes affect the whole process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import cerebras_tensorflow

ROOT = Path(cerebras_tensorflow.__file__).parents[1]
LAUNCHED = ROOT / "cerebras_tensorflow" / "compat" / "roots" / "launched"


def printed(code: str) -> str:
    """What a script that we launch prints."""
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join([str(LAUNCHED), str(ROOT)])}
    return subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize("kind", ["csr_matrix", "csr_array"])
def test_sparse_matrices_have_their_old_attribute_a(kind: str) -> None:
    pytest.importorskip("scipy")
    assert printed(f"import scipy.sparse as s; print(s.{kind}([[0, 2]]).A.tolist())") == "[[0, 2]]\n"


@pytest.mark.parametrize("imported", ["from nltk import ngrams", "from nltk.util import ngrams"])
def test_ngrams_take_numbers_of_numpy(imported: str) -> None:
    pytest.importorskip("nltk")
    code = f"import numpy as np; {imported}; print(list(ngrams('abc', np.int64(2))))"
    assert printed(code) == "[('a', 'b'), ('b', 'c')]\n"
