"""One run on several CSX: the first CSX tells the others what to compute, and each holds the weights that it owns."""
