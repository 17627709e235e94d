"""Memory of a step: liveness, spilling, recomputing, the budget."""
