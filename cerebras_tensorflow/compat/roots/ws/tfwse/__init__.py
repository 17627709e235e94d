"""Being importable says that this is weight streaming: scripts of releases 1.4 to 1.8 look for nothing else here."""

from cerebras_tensorflow.compat import activate

activate.old_script()
