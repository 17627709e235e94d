"""Which nodes of a step take each variable, and in which order."""
