"""Settings of a run: RunConfig and CSConfig."""
