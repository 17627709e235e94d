"""Runs a step in micro-batches: the gradients of each, their sums in a fixed tree, then the update."""
