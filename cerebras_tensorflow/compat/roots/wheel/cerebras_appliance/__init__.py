"""The appliance wheel of releases 1.6 to 1.8. Its modules are listed in cerebras_tensorflow/compat/names.py."""

from cerebras_tensorflow.compat import activate, appliance

activate.old_script()
DEFAULT_COMPILE_DIR = appliance.DEFAULT_COMPILE_DIR
