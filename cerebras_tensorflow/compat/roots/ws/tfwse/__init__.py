"""Marks weight streaming: scripts of releases 1.4 to 1.8 only check whether this module can be imported."""

from cerebras_tensorflow.compat import activate

activate.old_script()
