"""From a Program, weights and batches to steps."""
