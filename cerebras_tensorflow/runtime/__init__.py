"""Runs a Program: from weights and batches to steps. See README.md."""
