"""Runs at the start of every Python process of a launch, and restores the names that old scripts expect.

A sitecustomize of the site or the virtual environment, which this one hides, is run as well.
"""

import importlib.machinery
import importlib.util
import os
import sys

from cerebras_tensorflow.compat import activate

activate.launched()

_here = os.path.dirname(os.path.abspath(__file__))
_others = [entry for entry in sys.path if os.path.abspath(entry or ".") != _here]
_spec = importlib.machinery.PathFinder.find_spec("sitecustomize", _others)
if _spec is not None and _spec.loader is not None:
    _module = importlib.util.module_from_spec(_spec)
    _spec.loader.exec_module(_module)
