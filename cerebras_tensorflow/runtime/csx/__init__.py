"""One run on several CSX: the first CSX tells the others what to compute in each step."""
