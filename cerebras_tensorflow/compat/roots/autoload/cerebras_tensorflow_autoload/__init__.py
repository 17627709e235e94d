"""Start-up hook: a script that imports TensorFlow finds tf.estimator, even if it does not import this package.

A .pth file in site-packages imports this module when Python starts. Until TensorFlow is imported, the hook only
compares the names of imported modules. CEREBRAS_TENSORFLOW_AUTOLOAD=0 switches it off. If the hook fails,
it prints one line, and the script imports TensorFlow without us. If Python cannot find a script of the Model Zoo
that is a command here, the module prints the command.
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
        try:
            from cerebras_tensorflow.compat import activate, finder

            activate.plain_script()
            return finder.FINDER.find_spec(name, path, target)
        except Exception as error:  # noqa: BLE001 - never break a program that may not use us
            _give_up(error)
            return None


def _give_up(error: Exception) -> None:
    """Remove everything that the package has added to the import system, and print why."""
    import logging

    ours = [finder for finder in sys.meta_path if type(finder).__module__.startswith("cerebras_tensorflow")]
    for finder in ours:
        sys.meta_path.remove(finder)
    logging.getLogger(__name__).warning(
        "cerebras_tensorflow is installed but cannot set up tf.estimator (%s: %s). Install it again, or set "
        "CEREBRAS_TENSORFLOW_AUTOLOAD=0.",
        *(type(error).__name__, error),
    )


def _name_our_command(words: list[str]) -> None:
    """Print the command to use if Python was started with a script of the Model Zoo that is a command here."""
    script = words[1] if len(words) > 1 else ""
    if not script.endswith("convert_checkpoint.py"):
        return
    import os

    if not os.path.exists(script) and sys.stderr is not None:
        try:
            print(f"{script}: run the command convert_checkpoint instead; it takes the same arguments", file=sys.stderr)
        except OSError:  # a closed or full standard error
            return


_name_our_command(sys.orig_argv)
_hook: Any = _Hook()
sys.meta_path.insert(0, _hook)
