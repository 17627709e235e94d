"""Runs the training steps of a Program. See README.md."""
