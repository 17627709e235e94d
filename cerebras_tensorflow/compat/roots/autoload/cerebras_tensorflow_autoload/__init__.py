"""Start-up hook: a script that imports TensorFlow finds tf.estimator, even if it does not import this package.

A .pth file in site-packages imports this module when Python starts. Until TensorFlow is imported, the hook only
compares the names of imported modules. CEREBRAS_TENSORFLOW_AUTOLOAD=0 switches it off.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False  # importing typing would slow down every start of Python
if TYPE_CHECKING:
    from typing import Any

_NAMES = ("tensorflow", "tensorflow_estimator")


class _Hook:
    def find_spec(self, name: str, path: Any = None, target: Any = None) -> object:
        """Set up the compatibility imports when TensorFlow is imported, then continue with the import."""
        if name not in _NAMES:
            return None
        if _hook in sys.meta_path:
            sys.meta_path.remove(_hook)
        if "cerebras_tensorflow" in sys.modules:  # the script has set up the names by importing us
            return None
        import os

        if os.environ.get("CEREBRAS_TENSORFLOW_AUTOLOAD", "1") == "0":
            return None
        from cerebras_tensorflow.compat import activate, finder

        activate.plain_script()
        return finder.FINDER.find_spec(name, path, target)


_hook: Any = _Hook()
sys.meta_path.insert(0, _hook)
