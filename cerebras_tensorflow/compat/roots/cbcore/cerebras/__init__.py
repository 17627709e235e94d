"""The container's packages of releases 1.2 to 1.7, on this port. Modules: cerebras_tensorflow/compat/names.py."""

from cerebras_tensorflow.compat import activate

activate.old_script()
