"""Checkpoints in object storage: data objects and the manifest that commits them (see ../README.md)."""
