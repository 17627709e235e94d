"""Evaluation and prediction on several CSX: all compute batches, and the first one updates the metrics."""
