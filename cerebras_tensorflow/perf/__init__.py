"""What a run measured and what the system model estimates, never in one column."""
