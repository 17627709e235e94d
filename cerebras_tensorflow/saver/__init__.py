"""Checkpoints: reading, writing, keeping and converting them. Nothing here imports TensorFlow."""
