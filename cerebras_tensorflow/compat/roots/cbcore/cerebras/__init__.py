"""The package `cerebras` of releases 1.2 to 1.7. Its modules are listed in cerebras_tensorflow/compat/names.py."""

from cerebras_tensorflow.compat import activate

activate.old_script()
