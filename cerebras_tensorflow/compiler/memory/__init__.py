"""The memory of a step: liveness, spilling, recomputing, the budget."""
