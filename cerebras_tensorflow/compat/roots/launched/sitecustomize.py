"""Runs at the start of every Python process of a launch, and restores the names that old scripts expect.

It hides the sitecustomize of the site or the virtual environment, so it runs that one too. If an import fails here,
for example in another Python that lacks this package, Python prints one line and starts.
"""

import importlib.machinery
import importlib.util
import os
import sys


def _run_hidden_one() -> None:
    here = os.path.dirname(os.path.abspath(__file__))
    others = [entry for entry in sys.path if os.path.abspath(entry or ".") != here]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", others)
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


try:
    from cerebras_tensorflow.compat import activate

    activate.launched()
finally:
    _run_hidden_one()
