"""Updates and initial values computed in slices of a weight."""
