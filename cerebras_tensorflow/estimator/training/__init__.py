"""Training: the loop, its hooks, checkpoints, warm starts and sparsity."""
